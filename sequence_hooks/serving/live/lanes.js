"use strict";

// The chosen request's sequences, a lane each. Lanes stay in place: what is clicked or focused is not replaced.

const lanes = document.getElementById("lanes");
const whole = document.getElementById("whole");
const widths = document.createElement("canvas").getContext("2d");
let opened = null;

function element(name, properties = {}, ...children) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
}

function drawTree() {
  drawChosen();
  const shown = new Set(tree.sequences.map((sequence) => sequence.request_id));
  for (const lane of [...lanes.children]) if (!shown.has(lane.dataset.id)) lane.remove();
  if (!tree.sequences.length) return;
  const span = spanOfTree();
  const drawn = tree.sequences.map(laneOf);
  const room = roomOf(drawn[0]);
  tree.sequences.forEach((sequence, i) => {
    const lane = drawn[i];
    const state = spellState(sequence);
    Object.assign(lane.querySelector(".state"), { textContent: state, title: state });
    lane.querySelector(".bars").replaceChildren(...barsOf(sequence).map((bar) => drawBar(bar, span)));
    lane.querySelector(".end > span").replaceChildren(...lineOf(textsOf(sequence), room));
    lane.setAttribute("aria-selected", String(sequence.request_id === opened));
  });
}

// What was asked, and below it how far it is.
function drawChosen() {
  const [root] = tree.sequences;
  document.getElementById("chosen").textContent = root?.question || tree.id;
  const seconds = root ? spanOfTree().to - spanOfTree().from : 0;
  const tokens = tree.sequences.reduce((sum, each) => sum + each.num_output_tokens, 0);
  const parts = root
    ? [`${seconds.toFixed(1)} s`, `${tokens.toLocaleString("en")} tokens`, root.question ? tree.id : ""]
    : [tree.isGone ? "It has ended, and the server no longer knows it" : ""];
  document.getElementById("about").textContent = parts.filter(Boolean).join(" · ");
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

// A child is called by what it is about: of an outline, by its point.
function shortName(sequence) {
  const { request_id: id, parent_id: parent, is_detached: isDetached, label } = sequence;
  const number = parent && id.startsWith(parent) ? id.slice(parent.length + 1).replaceAll("_", " ") : elided(id);
  const name = label || (parent ? number : "answer");
  return isDetached ? `${name} (detached)` : name;
}

function nameOf(id) {
  const sequence = tree.sequences.find((each) => each.request_id === id);
  return sequence ? shortName(sequence) : (id ?? "");
}

// An id in few characters. The numbers of children all stay: nothing else tells the sequences of a tree apart.
function elided(id, most = 28) {
  const root = rootOf(id);
  const half = most / 2;
  const children = id.slice(root.length).replaceAll("_child_", " › ");
  return (root.length <= most ? root : `${root.slice(0, half - 1)}…${root.slice(-half)}`) + children;
}

function rootOf(id) {
  return id.replace(/(_child_\d+)+$/, "");
}

function spellState(sequence) {
  const tokens = `${sequence.num_output_tokens.toLocaleString("en")} tokens`;
  if (sequence.state === "blocked") return `${tokens}, waits for ${spellAwaited(sequence)}`;
  if (sequence.state === "finished") return `${tokens}, ${sequence.finish_reason ?? "ended"}${sequence.is_merged ? ", merged" : ""}`;
  return sequence.state === "waiting" ? `${tokens}, waits its turn` : tokens;
}

function spellAwaited({ waits_for, num_awaited, awaited = [] }) {
  if (waits_for === "caller") return "a caller";
  const names = awaited.map(nameOf).join(", ");
  if (names) return num_awaited < awaited.length ? `${num_awaited} of ${names}` : names;
  return num_awaited ? `${num_awaited.toLocaleString("en")} ${num_awaited === 1 ? "child" : "children"}` : "children";
}

function drawBar(bar, span) {
  const made = element("i");
  made.dataset.state = bar.state;
  const percent = (time) => `${(100 * (time - span.from)) / (span.to - span.from)}%`;
  made.style.left = percent(bar.from);
  made.style.width = `max(1px, ${(100 * (bar.to - bar.from)) / (span.to - span.from)}%)`;
  return made;
}

function spansOf(texts) {
  return texts.map(({ origin, child, text, is_replaced: isReplaced = false, numCut = 0 }) => {
    const cut = numCut ? [element("span", { className: "cut", textContent: text.slice(0, numCut) })] : [];
    const properties = { title: nameOf(child), className: [origin === "sampled" ? "" : origin, isReplaced ? "replaced" : ""].join(" ").trim() };
    return element("span", properties, ...cut, text.slice(numCut));
  });
}

// Texts on one line, of which only the end is seen: what has no room is in it, but not shown.
function lineOf(texts, room) {
  const line = texts.map((each) => ({ ...each, text: each.text.replaceAll("\n", "⏎") }));
  let start = startOfEnd(line.map((each) => each.text).join(""), room);
  for (const each of line) {
    each.numCut = Math.min(start, each.text.length);
    start -= each.numCut;
  }
  return spansOf(line);
}

// Where the last characters that have room begin; after a tag of which only a part would be seen.
function startOfEnd(text, room) {
  const start = Math.max(0, text.length - room);
  for (const tag of text.matchAll(/<[^<>\s]{1,40}>/g)) {
    if (tag.index < start && start < tag.index + tag[0].length) return tag.index + tag[0].length;
  }
  return start;
}

// How many characters have room where the end of a text is shown: its font has one width.
function roomOf(item) {
  const end = item.querySelector(".end");
  widths.font = getComputedStyle(end).font;
  return Math.max(1, Math.floor(end.clientWidth / widths.measureText("0").width));
}

function drawWhole(sequence, texts) {
  whole.hidden = false;
  whole.querySelector("h3").textContent = `${shortName(sequence)}: ${spellState(sequence)}`;
  whole.querySelector("pre").replaceChildren(...spansOf(texts));
}

function closeWhole() {
  opened = null;
  whole.hidden = true;
}
