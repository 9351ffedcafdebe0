"use strict";

// The run: a lane for each sequence. Children follow their parent, so that a tree is a range of lanes.

const MICROSECONDS = 1e6;
const data = JSON.parse(document.getElementById("data").textContent);
const STATES = data.states;
const END = Math.max(data.end / MICROSECONDS, 1e-6);
const lanes = data.lanes.map(laneOf);
const streams = data.streams.map(streamOf);
const arrows = data.arrows.map(([kind, source, start, target, end]) => (
  { kind, source, start: start / MICROSECONDS, target, end: end / MICROSECONDS }
));
linkTrees();

function laneOf({ bars, notes, start, end, ...told }) {
  const length = bars.length / 3;
  const states = new Uint8Array(length), ends = new Float64Array(length), tokens = new Uint32Array(length);
  let time = start;
  for (let i = 0; i < length; i++) {
    states[i] = bars[3 * i];
    ends[i] = (time += bars[3 * i + 1]) / MICROSECONDS;
    tokens[i] = bars[3 * i + 2];
  }
  return {
    ...told,
    start: start / MICROSECONDS,
    end: end === null ? null : end / MICROSECONDS,
    last: end === null ? END : Math.max(end, time) / MICROSECONDS,
    states,
    ends,
    tokens,
    notes: notes.map(([at, text]) => ({ time: at / MICROSECONDS, text })),
  };
}

function streamOf({ samples, ...told }) {
  return { ...told, samples, times: Float64Array.from(samples, ([time]) => time / MICROSECONDS) };
}

function linkTrees() {
  let request = -1;
  for (const lane of lanes) {
    lane.request = lane.parent === null ? ++request : lanes[lane.parent].request;
    lane.depth = lane.parent === null ? 0 : lanes[lane.parent].depth + 1;
    Object.assign(lane, { size: 1, treeStart: lane.start, treeEnd: lane.last });
  }
  for (let i = lanes.length - 1; i >= 0; i--) {
    if (lanes[i].parent === null) continue;
    const above = lanes[lanes[i].parent];
    above.size += lanes[i].size;
    above.treeStart = Math.min(above.treeStart, lanes[i].treeStart);
    above.treeEnd = Math.max(above.treeEnd, lanes[i].treeEnd);
  }
}

function startOf(lane, bar) {
  return bar ? lane.ends[bar - 1] : lane.start;
}

function barAt(lane, time) {
  // The index of the bar at a time; -1 if there is none.
  const bar = firstAfter(lane.ends, time);
  return bar < lane.ends.length && startOf(lane, bar) <= time ? bar : -1;
}

function firstWhere(length, isPast) {
  let [low, high] = [0, length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (isPast(middle)) high = middle;
    else low = middle + 1;
  }
  return low;
}

function firstAfter(sorted, value) {
  return firstWhere(sorted.length, (i) => sorted[i] > value);
}

function firstFrom(sorted, value) {
  return firstWhere(sorted.length, (i) => sorted[i] >= value);
}
