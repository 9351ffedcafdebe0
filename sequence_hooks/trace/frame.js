"use strict";

// The elements of the page, their sizes and colors, and when they are drawn: at most once a frame.

const LENGTHS = ["row", "labels", "axis"];
const COLORS = [
  "ink", "faint", "grid", "stripe", "focus", "band", "found", "found-mark", "prefill", "on-prefill", "decode",
  "on-decode", "blocked", "waiting", "spawn", "merge", "note", "blocks", "unshared",
];
const dom = Object.fromEntries([...document.querySelectorAll("[id]")].map((element) => [element.id, element]));
const style = {};
const size = { width: 0, map: 0, lanes: 0, blocks: 0, scroll: 0 };
let isScheduled = false;

function measure() {
  const computed = getComputedStyle(document.documentElement);
  for (const name of COLORS) style[name] = computed.getPropertyValue(`--${name}`).trim();
  for (const name of LENGTHS) style[name] = parseFloat(computed.getPropertyValue(`--${name}`));
  // As high as all lanes at most, whichever are shown: what is below does not move while the window does.
  dom.lanes.style.height = `${lanes.length * style.row + dom.lanes.clientTop}px`;
  size.width = dom.lanes.clientWidth;
  for (const name of ["map", "lanes", "blocks"]) size[name] = dom[name].clientHeight;
  style.labels = Math.min(style.labels, 0.3 * size.width);
  dom.labels.style.height = `${size.lanes}px`;
  document.documentElement.style.setProperty("--label-width", `${style.labels}px`);
}

function prepare(canvas, height) {
  const ratio = window.devicePixelRatio || 1;
  const [wide, high] = [Math.round(size.width * ratio), Math.round(height * ratio)];
  if (canvas.width !== wide || canvas.height !== high) Object.assign(canvas, { width: wide, height: high });
  canvas.style.width = `${size.width}px`;
  canvas.style.height = `${height}px`;
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, size.width, height);
  context.font = "12px system-ui, sans-serif";
  context.textBaseline = "middle";
  return context;
}

function clipToTimes(context, height, draw) {
  context.save();
  context.beginPath();
  context.rect(style.labels, 0, size.width - style.labels, height);
  context.clip();
  draw();
  context.restore();
}

function drawGrid(context, height) {
  context.fillStyle = style.grid;
  for (const time of ticks().times) context.fillRect(Math.round(xOf(time)), 0, 1, height);
}

function drawBreaks(context, height) {
  context.strokeStyle = style.faint;
  context.setLineDash([2, 4]);
  context.lineWidth = 1;
  context.beginPath();
  for (const cut of breaks()) {
    const x = Math.round(xOf(cuts.from[cut])) + 0.5;
    context.moveTo(x, 0);
    context.lineTo(x, height);
  }
  context.stroke();
  context.setLineDash([]);
}

function draw() {
  isScheduled = false;
  drawLanes();
  drawLabels();
  drawBlocks();
  drawMap();
  const length = view.realTo - view.realFrom;
  dom.range.textContent = `${spellTime(view.realFrom, length)} to ${spellTime(view.realTo, length)}`;
}

function redraw() {
  if (!isScheduled) requestAnimationFrame(draw);
  isScheduled = true;
}
