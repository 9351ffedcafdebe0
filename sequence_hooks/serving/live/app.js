"use strict";

// Asks the server again and again, and does what the user asks for.

const LIST_EVERY = 1000;
const TREE_EVERY = 150;
const ask = document.getElementById("ask");
const trouble = document.getElementById("trouble");
const troubles = { server: null, asked: null };
let asked = null;
let before = null;

const wait = (milliseconds) => new Promise((done) => setTimeout(done, milliseconds));

// What goes wrong with the server is said until it works again; with what was asked for, until the next time.
function say(about, error) {
  troubles[about] = error;
  const told = troubles.server ?? troubles.asked;
  trouble.textContent = told ? (told.message ?? String(told)) : "";
  trouble.hidden = !told;
  document.getElementById("key").hidden = told?.status !== 401;
}

async function watch(milliseconds, look) {
  for (;;) {
    try {
      if (!document.hidden) await look();
    } catch (error) {
      say("server", error);
      await wait(LIST_EVERY);
    }
    await wait(milliseconds);
  }
}

async function lookAtList() {
  const [told, waiting] = await Promise.all([api.json("/v1/live_requests"), lookAtCallers()]);
  say("server", null);
  // Whoever sends a prompt is told what is wrong.
  if (!ask.model.length) offerModels().catch(() => null);
  drawLists(told);
  fill("callers", waiting, makeCaller, (item, each, room) => drawCaller(item, each, room, told.time));
  if (asked?.id) {
    const mine = told.requests.find((each) => each.request_id === asked.id || each.request_id.startsWith(`${asked.id}-`));
    if (mine) choose(mine.request_id);
    if (mine) asked.id = null;
  }
  await lookAtFigures();
}

async function lookAtCallers() {
  const { sequences } = await api.json("/v1/sequences_awaiting_resume");
  return sequences.map((each) => ({ ...each, root: rootOf(each.request_id) }));
}

// A server may have none.
async function lookAtFigures() {
  const text = await api.send("/metrics").then((answer) => answer.text(), () => "");
  const figures = readMetrics(text);
  const now = performance.now() / 1000;
  if (before && figures.tokens !== undefined) figures.speed = (figures.tokens - before.tokens) / (now - before.time);
  before = { tokens: figures.tokens, time: now };
  drawFigures(figures);
}

async function lookAtTree() {
  if (tree.id === null || tree.sequences[0]?.state === "finished") return;
  const id = tree.id;
  const told = await api.json(`/v1/live_requests/${encodeURIComponent(id)}?num_tokens=${MOST_SHOWN}`).catch((error) => {
    if (error.status !== 404) throw error;
    return null;
  });
  if (id !== tree.id) return;
  if (told === null) endTree();
  else updateTree(told);
  drawTree();
  if (opened) await lookAtWhole();
}

async function lookAtWhole() {
  const sequence = tree.sequences.find((each) => each.request_id === opened);
  if (!sequence) return;
  if (sequence.num_output_tokens <= MOST_SHOWN) return drawWhole(sequence, textsOf(sequence));
  const told = await api.json(`/v1/live_requests/${encodeURIComponent(tree.id)}?num_tokens=200000`);
  const found = told.sequences.find((each) => each.request_id === opened);
  if (found) drawWhole(found, found.last_texts);
}

function choose(id) {
  if (id !== tree.id) closeWhole();
  chooseTree(id);
  drawTree();
  for (const button of document.querySelectorAll("#running button, #ended button")) {
    button.setAttribute("aria-current", String(button.parentNode.dataset.id === id));
  }
  lookAtTree().catch((error) => say("server", error));
}

async function resume(id, text) {
  try {
    await api.json("/v1/resume_sequence", { request_id: id, ...(text ? { text } : {}) });
    say("asked", null);
    await lookAtList();
  } catch (error) {
    say("asked", error);
  }
}

// A name that asks for an outline comes first, as the server was started for it; only a chat can ask so.
async function offerModels() {
  const ids = (await api.json("/v1/models")).data.map((each) => each.id);
  ids.sort((one, other) => isOutline(other) - isOutline(one));
  ask.model.replaceChildren(...ids.map((id) => element("option", { textContent: id })));
  ask.model.hidden = ids.length < 2;
  ask.model.onchange();
}

const isOutline = (model) => model.endsWith(":skeleton");

ask.model.onchange = () => {
  ask.chat.disabled = isOutline(ask.model.value);
  ask.chat.checked ||= ask.chat.disabled;
};

async function send() {
  const given = new FormData(ask);
  if (!ask.model.length) await offerModels();
  const isChat = ask.chat.checked;
  const body = {
    model: ask.model.value,
    max_tokens: Number(given.get("max_tokens")),
    temperature: Number(given.get("temperature")),
    stream: true,
    stream_children: true,
    skip_special_tokens: false,
    spaces_between_special_tokens: false,
    ...(isChat ? { messages: [{ role: "user", content: given.get("prompt") }] } : { prompt: given.get("prompt") }),
  };
  const stop = new AbortController();
  // What a stream tells of an answer by outline is not what its own sequence samples.
  asked = { id: null, stop, isOwn: !isOutline(body.model) };
  ask.send.textContent = "Stop";
  const path = isChat ? "/v1/chat/completions" : "/v1/completions";
  for await (const chunk of api.chunks(path, body, { signal: stop.signal })) await take(chunk);
}

// The first chunk names the request.
async function take(chunk) {
  if (chunk.error) throw new Error(chunk.error.message);
  if (asked.name === undefined) {
    asked.name = asked.id = chunk.id;
    await lookAtList();
  }
  if (tree.id === null || !tree.id.startsWith(asked.name)) return;
  if (chunk.child) noteStreamed(chunk.child.request_id, chunk.child.text);
  for (const choice of asked.isOwn ? chunk.choices : []) noteStreamed(tree.id, choice.text ?? choice.delta?.content ?? "");
  drawTree();
}

ask.onsubmit = async (event) => {
  event.preventDefault();
  if (asked) return asked.stop.abort();
  say("asked", null);
  try {
    await send();
    await lookAtList();
  } catch (error) {
    if (error.name !== "AbortError") say("asked", error);
  } finally {
    asked = null;
    ask.send.textContent = "Send";
  }
};

document.getElementById("key").onsubmit = (event) => {
  event.preventDefault();
  api.use(event.target.querySelector("input").value);
  lookAtList().catch((error) => say("server", error));
};

function open(lane) {
  if (!lane) return;
  opened = lane.dataset.id;
  drawTree();
  lookAtWhole().catch((error) => say("server", error));
}

lanes.onclick = (event) => open(event.target.closest(".lane"));
lanes.onkeydown = (event) => {
  const lane = event.target.closest(".lane");
  const steps = {
    Enter: () => open(lane),
    " ": () => open(lane),
    ArrowDown: () => lane?.nextElementSibling?.focus(),
    ArrowUp: () => lane?.previousElementSibling?.focus(),
  };
  if (steps[event.key]) event.preventDefault(), steps[event.key]();
};
document.onkeydown = (event) => {
  if (event.key === "Escape" && opened) closeWhole(), drawTree();
};
ask.prompt.onkeydown = (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) ask.requestSubmit();
};
whole.querySelector("button").onclick = () => (closeWhole(), drawTree());

watch(LIST_EVERY, lookAtList);
watch(TREE_EVERY, lookAtTree);
