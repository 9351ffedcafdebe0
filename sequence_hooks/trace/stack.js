"use strict";

// A folded tree in one row: the number of its sequences in each state, stacked. Full height is the most at any time.

const STACK = ["decode", "prefill", "blocked", "waiting"];
const MARGIN = 2;

function drawStack(context, row) {
  const tallied = tallyOf(rows[row]);
  const steps = stepsOf(tallied);
  const bottom = yOf(row) + style.row / 2 - MARGIN;
  const unit = (style.row - 2 * MARGIN) / Math.max(tallied.most, 1);
  // From the highest level down, so that each covers all but its own part of the one before.
  for (let level = STACK.length - 1; level >= 0; level--) {
    context.fillStyle = style[STACK[level]];
    context.beginPath();
    let y = bottom;
    for (const { x, levels } of steps) {
      context.lineTo(x, y);
      y = bottom - unit * levels[level];
      context.lineTo(x, y);
    }
    context.fill();
  }
}

function stepsOf(tallied) {
  // The levels from each x on: exact where they last longer than a column of pixels, and means where they don't.
  const { times } = tallied;
  const steps = [];
  if (!times.length) return steps;
  const right = Math.min(xOf(times.at(-1)), size.width);
  let x = Math.max(Math.floor(xOf(times[0])), Math.floor(style.labels));
  while (x < right) {
    const i = firstAfter(times, timeOf(x)) - 1;
    const until = i < 0 || i + 1 >= times.length ? x : Math.floor(xOf(times[i + 1]));
    const isExact = until > x + 1;
    const counts = isExact ? tallied.counts.map((each) => each[i]) : meansOf(tallied, timeOf(x), timeOf(x + 1));
    steps.push({ x, levels: levelsOf(counts) });
    x = isExact ? until : x + 1;
  }
  steps.push({ x: Math.min(x, size.width), levels: STACK.map(() => 0) });
  return steps;
}

function levelsOf(counts) {
  let sum = 0;
  return STACK.map((state) => (sum += counts[STATES.indexOf(state)]));
}
