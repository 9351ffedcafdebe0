"use strict";

// What is known of the chosen request: its sequences as the server has told them last, what a stream has brought since,
// and when each sequence was seen to wait for its turn.

// Tokens of each sequence that the server is asked for while it runs.
const MOST_SHOWN = 256;

const tree = { id: null, ...nothing(), now: 0 };

function nothing() {
  return { sequences: [], depths: new Map(), turns: new Map(), streamed: new Map(), isGone: false };
}

function chooseTree(id) {
  if (id !== tree.id) Object.assign(tree, { id, ...nothing() });
}

// Parents come before their children.
function updateTree(told) {
  tree.now = told.time;
  tree.sequences = told.sequences;
  for (const sequence of told.sequences) {
    tree.depths.set(sequence.request_id, (tree.depths.get(sequence.parent_id) ?? 0) + 1);
    if (sequence.state === "waiting") noteTurn(sequence, told.time);
  }
}

// Of what the server no longer knows, such as an aborted request without a tree, the last that was seen is all there is.
function endTree() {
  tree.isGone = true;
  const ended = { state: "finished", waits_for: null, ended: tree.now };
  updateTree({ time: tree.now, sequences: tree.sequences.map((each) => ({ ...each, ...ended })) });
}

// The server does not tell when a sequence got its turn: it is known to have waited only for as long as it was seen to.
function noteTurn(sequence, now) {
  const from = sequence.waits?.at(-1)?.[1] ?? startOf(sequence);
  const turns = tree.turns.get(sequence.request_id) ?? new Map();
  tree.turns.set(sequence.request_id, turns.set(from, now));
}

function startOf(sequence) {
  return sequence.started ?? tree.now;
}

// Later bars lie on those before them.
function barsOf(sequence) {
  const isOver = sequence.state === "finished";
  const turns = [...(tree.turns.get(sequence.request_id) ?? [])];
  const waits = [...(sequence.waits ?? []), ...(sequence.state === "blocked" ? [[sequence.since ?? tree.now, tree.now]] : [])];
  return [
    { state: "running", from: startOf(sequence), to: isOver ? (sequence.ended ?? tree.now) : tree.now },
    ...turns.map(([from, to]) => ({ state: "waiting", from, to })),
    ...waits.map(([from, to]) => ({ state: "blocked", from, to })),
  ];
}

function spanOfTree() {
  const root = tree.sequences[0];
  const from = Math.min(...tree.sequences.map(startOf));
  const to = root.state === "finished" ? Math.max(...tree.sequences.map((each) => each.ended ?? tree.now)) : tree.now;
  return { from, to: Math.max(to, from + 0.001) };
}

function noteStreamed(id, text) {
  tree.streamed.set(id, (tree.streamed.get(id) ?? "") + text);
}

// The texts of a sequence, with what its stream has brought since the server told of it.
function textsOf(sequence) {
  const texts = [...sequence.last_texts];
  const streamed = tree.streamed.get(sequence.request_id) ?? "";
  const told = texts.reduce((length, each) => length + each.text.length, 0);
  const isWhole = texts.length === 0 || sequence.num_output_tokens <= MOST_SHOWN;
  if (isWhole && streamed.length > told) texts.push({ origin: "sampled", child: null, text: streamed.slice(told) });
  return texts;
}
