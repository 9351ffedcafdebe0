"use strict";

// The whole run in a strip: how many sequences compute, where a search found some, and the window as a brush.

const CLICK = 3;
const BELOW_FOUND = 5;
let mapDrawn = null;
let brushing = null;

const mapScale = () => (size.width - style.labels) / shownEnd();
const mapX = (time) => style.labels + toShown(time) * mapScale();
const mapAt = (x) => (x - style.labels) / mapScale();

function peaksByColumn() {
  // The most sequences that compute at any time in each column of pixels.
  const peaks = new Int32Array(Math.ceil(size.width - style.labels));
  const run = tallyOfRun();
  for (let i = 0; i + 1 < run.times.length; i++) {
    const computing = numComputing(run, i);
    if (!computing) continue;
    const last = Math.min(Math.ceil(mapX(run.times[i + 1]) - style.labels), peaks.length);
    for (let column = Math.floor(mapX(run.times[i]) - style.labels); column < last; column++) {
      peaks[column] = Math.max(peaks[column], computing);
    }
  }
  return peaks;
}

function drawMap() {
  placeBrush();
  const drawn = [size.width, size.map, style.decode, devicePixelRatio, cuts.at.length, found.query].join();
  if (mapDrawn === drawn) return;
  mapDrawn = drawn;
  const context = prepare(dom.map.querySelector("canvas"), size.map);
  const peaks = peaksByColumn();
  const most = peaks.reduce((highest, peak) => Math.max(highest, peak), 0);
  const room = size.map - BELOW_FOUND - 2;
  context.fillStyle = style.blocks;
  context.beginPath();
  context.moveTo(style.labels, size.map);
  peaks.forEach((peak, column) => {
    const y = size.map - (room * peak) / Math.max(most, 1);
    context.lineTo(style.labels + column, y);
    context.lineTo(style.labels + column + 1, y);
  });
  context.lineTo(style.labels + peaks.length, size.map);
  context.fill();
  context.fillStyle = style["found-mark"];
  for (const x of new Set(found.lanes.map((index) => Math.round(mapX(lanes[index].start))))) {
    context.fillRect(x - 1, 0, 2, BELOW_FOUND);
  }
  dom.busiest.textContent = `up to ${counted(most, "sequence")} at once`;
}

function placeBrush() {
  const [left, right] = [view.from, view.to].map((shown) => style.labels + shown * mapScale());
  dom.brush.style.left = `${left - 2}px`;
  dom.brush.style.width = `${Math.max(right - left, 2) + 4}px`;
}

function onBrushDown(event) {
  const { edge } = event.target.dataset;
  const at = mapAt(event.clientX);
  const isOutside = !dom.brush.contains(event.target);
  if (event.button !== 0 || (isOutside && event.clientX < style.labels)) return;
  brushing = { x: event.clientX, isOutside, hasMoved: false, offset: null, fixed: at };
  if (edge) brushing.fixed = edge === "from" ? view.to : view.from;
  else if (event.target === dom.brush && !isWhole()) brushing.offset = at - view.from;
  dom.map.setPointerCapture(event.pointerId);
}

function onBrushMove(event) {
  if (!brushing) return;
  brushing.hasMoved ||= Math.abs(event.clientX - brushing.x) > CLICK;
  if (!brushing.hasMoved) return;
  const at = Math.min(Math.max(mapAt(event.clientX), 0), shownEnd());
  const { offset, fixed } = brushing;
  if (offset === null) show(Math.min(at, fixed), Math.max(at, fixed));
  else show(mapAt(event.clientX) - offset, mapAt(event.clientX) - offset + view.to - view.from);
}

function onBrushUp(event) {
  const isClick = brushing?.isOutside && !brushing.hasMoved;
  if (isClick) pan(mapAt(event.clientX) - (view.from + view.to) / 2);
  brushing = null;
}
