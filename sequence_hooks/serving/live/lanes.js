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
  const { request_id: id, parent_id: parent, is_detached: isDetached, label } = sequence;
  const name = parent && id.startsWith(parent) ? id.slice(parent.length + 1).replaceAll("_", " ") : elided(id);
  const about = label ? `${name} ${label}` : name;
  return isDetached ? `${about} (detached)` : about;
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
  if (sequence.state === "finished") return `${tokens}, ${sequence.finish_reason ?? "ended"}`;
  return sequence.state === "waiting" ? `${tokens}, waits its turn` : tokens;
}

function spellAwaited({ waits_for, num_awaited }) {
  if (waits_for === "caller") return "a caller";
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
    const properties = { title: child ?? "", className: [origin === "sampled" ? "" : origin, isReplaced ? "replaced" : ""].join(" ").trim() };
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
  whole.querySelector("h3").textContent = `${sequence.request_id}: ${spellState(sequence)}`;
  whole.querySelector("pre").replaceChildren(...spansOf(texts));
}

function closeWhole() {
  opened = null;
  whole.hidden = true;
}
