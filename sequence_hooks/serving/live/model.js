"use strict";

// What is known of the chosen request: its sequences as the server has told them last, what a stream has brought since,
// and when each sequence was in which state.

// Tokens of each sequence that the server is asked for while it runs.
const MOST_SHOWN = 256;

const tree = { id: null, sequences: [], now: 0, depths: new Map(), histories: new Map(), streamed: new Map() };

function chooseTree(id) {
  if (id === tree.id) return;
  Object.assign(tree, { id, sequences: [], depths: new Map(), histories: new Map(), streamed: new Map() });
}

// Parents come before their children.
function updateTree(told) {
  tree.now = told.time;
  tree.sequences = told.sequences;
  for (const sequence of told.sequences) {
    tree.depths.set(sequence.request_id, (tree.depths.get(sequence.parent_id) ?? 0) + 1);
    noteState(sequence, told.time);
  }
}

// The server remembers only trees: of other requests the last that was seen is all there is.
function endTree() {
  const ended = { state: "finished", waits_for: null, ended: tree.now };
  updateTree({ time: tree.now, sequences: tree.sequences.map((each) => ({ ...each, ...ended })) });
}

// Only changes of state are kept: a bar ends where the next one begins.
function noteState(sequence, now) {
  const bars = tree.histories.get(sequence.request_id) ?? [];
  tree.histories.set(sequence.request_id, bars);
  const last = bars.at(-1);
  if (last?.state === sequence.state) return;
  if (!last) bars.push({ state: sequence.state === "waiting" ? "waiting" : "running", from: sequence.started ?? now });
  if (bars.at(-1).state === sequence.state) return;
  bars.push({ state: sequence.state, from: changedAt(sequence, now) });
}

function changedAt(sequence, now) {
  if (sequence.state === "blocked") return sequence.since ?? now;
  if (sequence.state === "finished") return sequence.ended ?? now;
  return now;
}

function barsOf(sequence) {
  const bars = tree.histories.get(sequence.request_id) ?? [];
  return bars.map((bar, i) => ({ ...bar, to: bars[i + 1]?.from ?? tree.now })).filter((bar) => bar.state !== "finished");
}

function spanOfTree() {
  const root = tree.sequences[0];
  const from = Math.min(...tree.sequences.map((sequence) => sequence.started ?? tree.now));
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
