"use strict";

// The chosen request's sequences, a lane each. Lanes stay in place: what is clicked or focused is not replaced.

const lanes = document.getElementById("lanes");
const whole = document.getElementById("whole");
let opened = null;

function element(name, properties = {}, ...children) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
}

function drawTree() {
  const shown = new Set(tree.sequences.map((sequence) => sequence.request_id));
  for (const lane of [...lanes.children]) if (!shown.has(lane.dataset.id)) lane.remove();
  if (!tree.sequences.length) return;
  const span = spanOfTree();
  tree.sequences.forEach((sequence, i) => {
    const lane = laneOf(sequence, i);
    lane.querySelector(".state").textContent = spellState(sequence);
    lane.querySelector(".bars").replaceChildren(...barsOf(sequence).map((bar) => drawBar(bar, span)));
    lane.querySelector(".end > span").replaceChildren(...spansOf(textsOf(sequence), true));
    lane.setAttribute("aria-selected", String(sequence.request_id === opened));
  });
}

function laneOf(sequence, i) {
  const at = lanes.children[i];
  if (at?.dataset.id === sequence.request_id) return at;
  const lane = element("div", { className: "lane", tabIndex: 0, title: sequence.request_id });
  lane.dataset.id = sequence.request_id;
  lane.setAttribute("role", "treeitem");
  const depth = tree.depths.get(sequence.request_id);
  lane.setAttribute("aria-level", String(depth));
  lane.style.setProperty("--depth", String(depth - 1));
  lane.append(
    element("span", { className: "name", textContent: shortName(sequence) }),
    element("span", { className: "state" }),
    element("span", { className: "bars" }),
    element("span", { className: "end" }, element("span")),
  );
  lanes.insertBefore(lane, at ?? null);
  return lane;
}

function shortName(sequence) {
  const { request_id: id, parent_id: parent, is_detached: isDetached } = sequence;
  const name = parent && id.startsWith(parent) ? id.slice(parent.length + 1).replaceAll("_", " ") : elided(id);
  return isDetached ? `${name} (detached)` : name;
}

function elided(id) {
  return id.length <= 26 ? id : `${id.slice(0, 12)}…${id.slice(-12)}`;
}

function spellState(sequence) {
  const tokens = `${sequence.num_output_tokens.toLocaleString("en")} tokens`;
  if (sequence.state === "blocked") return `${tokens}, waits for ${sequence.waits_for === "caller" ? "a caller" : "children"}`;
  if (sequence.state === "finished") return `${tokens}, ${sequence.finish_reason ?? "ended"}`;
  return sequence.state === "waiting" ? `${tokens}, waits its turn` : tokens;
}

function drawBar(bar, span) {
  const made = element("i");
  made.dataset.state = bar.state;
  const percent = (time) => `${(100 * (time - span.from)) / (span.to - span.from)}%`;
  made.style.left = percent(bar.from);
  made.style.width = `max(1px, ${(100 * (bar.to - bar.from)) / (span.to - span.from)}%)`;
  return made;
}

function spansOf(texts, isOneLine) {
  return texts.map(({ origin, child, text }) => {
    const shown = isOneLine ? text.replaceAll("\n", "⏎") : text;
    return element("span", { textContent: shown, title: child ?? "", className: origin === "sampled" ? "" : origin });
  });
}

function drawWhole(sequence, texts) {
  whole.hidden = false;
  whole.querySelector("h3").textContent = `${sequence.request_id}: ${spellState(sequence)}`;
  whole.querySelector("pre").replaceChildren(...spansOf(texts, false));
}

function closeWhole() {
  opened = null;
  whole.hidden = true;
}
