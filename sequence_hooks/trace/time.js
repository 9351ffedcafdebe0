"use strict";

// The window, and where a time is on the screen. The axis has "shown" seconds: those of the run, less the idle periods
// before them that are cut out.

const SHORTEST = 1e-6;
const BETWEEN_TICKS = 110;
const BETWEEN_BREAKS = 6;
const NOTHING_CUT = cutsOf([]);
const view = { from: 0, to: END, realFrom: 0, realTo: END };
let cuts = NOTHING_CUT;

function cutsOf(periods) {
  // For each cut: its start and its end in the run, where it is on the axis, and what is gone there in all.
  const made = { from: [], to: [], at: [], gone: [] };
  let gone = 0;
  for (const [from, to] of periods) {
    made.from.push(from);
    made.to.push(to);
    made.at.push(from - gone);
    made.gone.push((gone += to - from));
  }
  return made;
}

function toShown(time) {
  const last = firstFrom(cuts.from, time) - 1;
  if (last < 0) return time;
  return time <= cuts.to[last] ? cuts.at[last] : time - cuts.gone[last];
}

function toReal(shown, numCuts = firstAfter(cuts.at, shown)) {
  return numCuts ? shown + cuts.gone[numCuts - 1] : shown;
}

const shownEnd = () => toShown(END);
const isWhole = () => view.to - view.from >= shownEnd();
const scale = () => (size.width - style.labels) / (view.to - view.from);
const xOf = (time) => style.labels + (toShown(time) - view.from) * scale();
const shownAt = (x) => view.from + (x - style.labels) / scale();
const timeOf = (x) => toReal(shownAt(x));

function setWindow(from, to) {
  const length = Math.min(Math.max(to - from, SHORTEST), shownEnd());
  view.from = Math.min(Math.max(from, 0), shownEnd() - length);
  view.to = view.from + length;
  view.realFrom = toReal(view.from);
  // At its end the window is before a cut, not after it.
  view.realTo = toReal(view.to, firstFrom(cuts.at, view.to));
}

function setCut(isCut) {
  const { realFrom, realTo } = view;
  const [wasWhole, length] = [isWhole(), view.to - view.from];
  cuts = isCut ? cutsOf(idlePeriods()) : NOTHING_CUT;
  const [from, to] = wasWhole ? [0, shownEnd()] : [toShown(realFrom), toShown(realTo)];
  // A window in which all is cut out keeps its length.
  setWindow(from, to > from ? to : from + length);
}

function* pieces() {
  // The periods in the window that are not cut out.
  let from = view.realFrom;
  for (let i = firstAfter(cuts.at, view.from); i < cuts.at.length && cuts.at[i] < view.to; i++) {
    yield [from, cuts.from[i]];
    from = cuts.to[i];
  }
  yield [from, view.realTo];
}

function ticks() {
  const rough = (view.to - view.from) / Math.max(2, (size.width - style.labels) / BETWEEN_TICKS);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 5, 10].find((factor) => factor * power >= rough);
  const times = [];
  let free = -Infinity;
  for (const [from, to] of pieces()) {
    for (let n = Math.ceil(from / step); n * step <= to; n++) {
      if (xOf(n * step) < free) continue;
      free = xOf(n * step) + 0.7 * BETWEEN_TICKS;
      times.push(n * step);
    }
  }
  return { step, times };
}

function breaks() {
  // The cuts in the window, as indices; of several at one place, the first.
  const seen = [];
  let free = -Infinity;
  for (let i = firstFrom(cuts.at, view.from); i < cuts.at.length && cuts.at[i] <= view.to; i++) {
    const x = xOf(cuts.from[i]);
    if (x < free) continue;
    free = x + BETWEEN_BREAKS;
    seen.push(i);
  }
  return seen;
}
