"use strict";

// The lists beside the tree: who waits for a caller, what runs, and what has ended.

function drawLists(told) {
  fill("running", told.requests.filter((each) => !each.has_ended), makeRequest, drawRequest);
  fill("ended", told.requests.filter((each) => each.has_ended).reverse(), makeRequest, drawRequest);
}

// An item that is there already is changed, not replaced: it may have the focus.
function fill(name, items, make, draw) {
  const list = document.getElementById(name);
  const before = new Map([...list.children].map((item) => [item.dataset.id, item]));
  const after = items.map((each) => {
    const item = before.get(each.request_id) ?? element("li", {}, ...make(each));
    item.dataset.id = each.request_id;
    return item;
  });
  for (const item of [...list.children]) if (!after.includes(item)) item.remove();
  after.forEach((item, i) => list.children[i] !== item && list.insertBefore(item, list.children[i] ?? null));
  if (!after.length) return;
  const room = roomOf(after[0]);
  items.forEach((each, i) => draw(after[i], each, room));
}

function makeRequest(request) {
  const id = request.request_id;
  const button = element("button", { type: "button", title: id, onclick: () => choose(id) });
  button.append(element("span", { className: "name", textContent: request.question || elided(id) }), element("span", { className: "said" }));
  button.append(element("span", { className: "end" }, element("span")));
  return [button];
}

function drawRequest(item, request, room) {
  item.firstChild.setAttribute("aria-current", String(request.request_id === tree.id));
  item.querySelector(".said").textContent = spellCounts(request);
  item.querySelector(".end > span").replaceChildren(...lineOf(request.last_texts, room));
}

function spellCounts(request) {
  const counts = Object.entries(request.num_by_state).map(([state, number]) => `${number} ${state}`);
  return `${counts.join(", ")} · ${request.num_output_tokens.toLocaleString("en")} tokens`;
}

function drawCaller(item, waiting, room, now) {
  const numDone = waiting.children.length - waiting.num_unfinished_children;
  const children = waiting.children.length ? `, ${numDone} of ${waiting.children.length} children done` : "";
  const seconds = Math.max(0, Math.round(now - waiting.since));
  item.querySelector(".said").textContent = `${seconds} s, at token ${waiting.position}${children}`;
  const texts = [{ origin: "sampled", child: null, text: waiting.text }];
  item.querySelector(".end > span").replaceChildren(...lineOf(texts, room));
}

function makeCaller(waiting) {
  const id = waiting.request_id;
  const button = element("button", { type: "button", title: id, onclick: () => choose(waiting.root) });
  button.append(element("span", { className: "name", textContent: elided(id, 16) }), element("span", { className: "said" }));
  const end = element("span", { className: "end" }, element("span"));
  const input = element("input", { placeholder: "Text that comes next", ariaLabel: `Text for ${id}` });
  const form = element("form", {}, input, element("button", { textContent: "Resume" }));
  form.onsubmit = (event) => {
    event.preventDefault();
    resume(id, input.value);
  };
  return [button, end, form];
}

function drawFigures(figures) {
  const spelled = [
    ["running", figures.running],
    ["waiting", figures.waiting],
    ["blocked", figures.blocked],
    ["tokens/s", figures.speed === undefined ? undefined : Math.round(figures.speed).toLocaleString("en")],
    ["KV", figures.kv === undefined ? undefined : `${(100 * figures.kv).toFixed(1)} %`],
  ].filter(([, figure]) => figure !== undefined);
  const drawn = spelled.map(([name, figure]) =>
    element("div", {}, element("dt", { textContent: name }), element("dd", { textContent: String(figure) })),
  );
  document.getElementById("figures").replaceChildren(...drawn);
}
