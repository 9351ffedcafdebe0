"use strict";

// Lanes and blocks are drawn on two canvases with one time axis. Only rows that can be seen are drawn.

const data = JSON.parse(document.getElementById("data").textContent);
const lanes = document.getElementById("lanes");
const blocks = document.getElementById("blocks");
const tip = document.getElementById("tip");
const END = Math.max(data.end, 1e-6);
const SHORTEST = 1e-6;
const HEIGHTS = { prefill: 0.7, decode: 0.7, blocked: 0.35, waiting: 0.08 };
const UNITS = [[1, "s"], [1e-3, "ms"], [1e-6, "µs"]];

const view = { from: 0, to: END };
let style = {};
let hovered = null;
let drawn = false;

const rows = () => data.lanes.length;
const width = () => lanes.clientWidth;
const scale = () => (width() - style.labels) / (view.to - view.from);
const xOf = (time) => style.labels + (time - view.from) * scale();
const timeOf = (x) => view.from + (x - style.labels) / scale();
const yOf = (row) => (row + 0.5) * style.row - lanes.scrollTop;

function readStyle() {
  const computed = getComputedStyle(document.documentElement);
  const names = ["page", "ink", "faint", "grid", "stripe", "prefill", "decode", "blocked", "waiting"];
  style = {};
  for (const name of [...names, "spawn", "merge", "note", "unshared"]) {
    style[name] = computed.getPropertyValue(`--${name}`).trim();
  }
  style.area = computed.getPropertyValue("--blocks").trim();
  for (const name of ["row", "labels", "axis"]) style[name] = parseFloat(computed.getPropertyValue(`--${name}`));
  style.labels = Math.min(style.labels, 0.3 * width());
}

// Text

function spell(seconds) {
  if (seconds === 0) return "0 s";
  const [unit, name] = UNITS.find(([unit]) => Math.abs(seconds) >= unit) ?? UNITS[2];
  return `${Number((seconds / unit).toPrecision(4))} ${name}`;
}

function spellTick(seconds, step) {
  const [unit, name] = UNITS.find(([unit]) => step >= unit) ?? UNITS[2];
  return `${Number((seconds / unit).toFixed(6))} ${name}`;
}

function ticks() {
  const rough = (view.to - view.from) / Math.max(2, (width() - style.labels) / 110);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 5, 10].find((factor) => factor * power >= rough);
  const times = [];
  for (let n = Math.ceil(view.from / step); n * step <= view.to; n++) times.push(n * step);
  return { step, times };
}

// Drawing

function prepare(canvas, height) {
  const ratio = window.devicePixelRatio || 1;
  canvas.width = Math.round(width() * ratio);
  canvas.height = Math.round(height * ratio);
  canvas.style.height = `${height}px`;
  const context = canvas.getContext("2d");
  context.scale(ratio, ratio);
  context.clearRect(0, 0, width(), height);
  context.font = "12px system-ui, sans-serif";
  context.textBaseline = "middle";
  return context;
}

function drawGrid(context, height) {
  context.fillStyle = style.grid;
  for (const time of ticks().times) context.fillRect(Math.round(xOf(time)), 0, 1, height);
}

function clipToTimes(context, height, draw) {
  context.save();
  context.beginPath();
  context.rect(style.labels, 0, width() - style.labels, height);
  context.clip();
  draw();
  context.restore();
}

function firstVisible(items, timeAt) {
  let [low, high] = [0, items.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (timeAt(items[middle]) < view.from) low = middle + 1;
    else high = middle;
  }
  return low;
}

function drawBars(context, row) {
  const bars = data.lanes[row].bars;
  for (let i = firstVisible(bars, (bar) => bar[2]); i < bars.length && bars[i][1] <= view.to; i++) {
    const [state, start, end, tokens] = bars[i];
    const left = Math.max(xOf(start), style.labels - 1);
    const length = Math.max(Math.min(xOf(end), width()) - left, 1);
    const height = Math.max(style.row * HEIGHTS[state], 2);
    context.fillStyle = style[state];
    context.fillRect(left, yOf(row) - height / 2, length, height);
    if (HEIGHTS[state] > 0.5 && length > 60) {
      context.fillStyle = style.page;
      context.fillText(`${state} ${tokens}`, left + 5, yOf(row) + 0.5, length - 8);
    }
  }
}

function isMarked(text) {
  return /^(preempted|gave up|KV)/.test(text);
}

function drawNotes(context, row) {
  context.fillStyle = style.note;
  for (const [time, text] of data.lanes[row].notes) {
    if (!isMarked(text)) continue;
    context.save();
    context.translate(xOf(time), yOf(row));
    context.rotate(Math.PI / 4);
    context.fillRect(-4, -4, 8, 8);
    context.restore();
  }
}

function drawArrow(context, [kind, source, start, target, end]) {
  const [x, y, tipY] = [xOf(end), yOf(source), yOf(target)];
  const way = Math.sign(tipY - y);
  const edge = tipY - way * style.row * 0.35;
  const isFaded = hovered !== null && hovered !== source && hovered !== target;
  context.globalAlpha = isFaded ? 0.4 : 1;
  context.strokeStyle = context.fillStyle = style[kind];
  context.lineWidth = hovered !== null && !isFaded ? 2.5 : 1.25;
  context.setLineDash(kind === "merge" ? [4, 3] : []);
  context.beginPath();
  context.moveTo(xOf(start), y);
  context.lineTo(x, y);
  context.lineTo(x, edge);
  context.stroke();
  context.setLineDash([]);
  context.beginPath();
  context.moveTo(x, edge);
  context.lineTo(x - 4, edge - way * 7);
  context.lineTo(x + 4, edge - way * 7);
  context.fill();
  context.globalAlpha = 1;
}

function drawArrows(context, height) {
  const [top, bottom] = [lanes.scrollTop / style.row - 1, (lanes.scrollTop + height) / style.row];
  for (const arrow of data.arrows) {
    const [, source, start, target, end] = arrow;
    const isInRows = Math.max(source, target) >= top && Math.min(source, target) <= bottom;
    if (isInRows && start <= view.to && end >= view.from) drawArrow(context, arrow);
  }
}

function drawLabel(context, row) {
  const lane = data.lanes[row];
  const left = 12 + 14 * Math.min(lane.depth, 6);
  const name = lane.parent !== null && lane.name.startsWith(lane.parent) ? lane.name.slice(lane.parent.length + 1) : lane.name;
  context.fillStyle = style.ink;
  context.font = lane.depth ? "12px system-ui, sans-serif" : "bold 12px system-ui, sans-serif";
  context.fillText(name.replaceAll("_", " "), left, yOf(row), style.labels - left - 4);
}

function drawLanes() {
  const height = lanes.clientHeight;
  const context = prepare(lanes.querySelector("canvas"), height);
  const first = Math.floor(lanes.scrollTop / style.row);
  const last = Math.min(rows() - 1, Math.floor((lanes.scrollTop + height) / style.row));
  context.fillStyle = style.stripe;
  for (let row = first; row <= last; row++) {
    if (row % 2) context.fillRect(0, yOf(row) - style.row / 2, width(), style.row);
  }
  drawGrid(context, height);
  clipToTimes(context, height, () => {
    for (let row = first; row <= last; row++) drawBars(context, row);
    drawArrows(context, height);
    for (let row = first; row <= last; row++) drawNotes(context, row);
  });
  for (let row = first; row <= last; row++) drawLabel(context, row);
}

function columnsOf(samples, value) {
  // The most of each column of pixels: what is narrower than a pixel must not vanish.
  const columns = [];
  const first = Math.max(0, firstVisible(samples, (sample) => sample[0]) - 1);
  for (let i = first; i < samples.length && samples[i][0] <= view.to; i++) {
    const x = Math.round(Math.max(xOf(samples[i][0]), style.labels));
    const last = columns.at(-1);
    if (last && last[0] === x) columns[columns.length - 1] = [x, Math.max(last[1], value(samples[i])), value(samples[i])];
    else columns.push([x, value(samples[i]), value(samples[i])]);
  }
  return columns;
}

function traceSteps(context, columns, yOfCount) {
  columns.forEach(([x, most, latest], i) => {
    if (i) context.lineTo(x, yOfCount(columns[i - 1][2]));
    context.lineTo(x, yOfCount(most));
    context.lineTo(x, yOfCount(latest));
  });
  if (columns.length) context.lineTo(Math.min(xOf(data.end), width()), yOfCount(columns.at(-1)[2]));
}

function drawStream(context, stream, top, bottom) {
  const most = Math.max(1, ...peaks(stream));
  const yOfCount = (count) => bottom - ((bottom - top - 14) * count) / most;
  const used = columnsOf(stream.samples, (sample) => sample[1]);
  clipToTimes(context, bottom, () => {
    context.fillStyle = style.area;
    context.beginPath();
    context.moveTo(used.length ? used[0][0] : 0, bottom);
    traceSteps(context, used, yOfCount);
    context.lineTo(Math.min(xOf(data.end), width()), bottom);
    context.fill();
    context.strokeStyle = style.unshared;
    context.setLineDash([3, 3]);
    context.beginPath();
    traceSteps(context, columnsOf(stream.samples, (sample) => sample[2]), yOfCount);
    context.stroke();
    context.setLineDash([]);
  });
  drawScale(context, stream, top, bottom, most);
}

function peaks(stream) {
  stream.peaks ??= [1, 2].map((index) => stream.samples.reduce((most, sample) => Math.max(most, sample[index]), 0));
  return stream.peaks;
}

function drawScale(context, stream, top, bottom, most) {
  const [used, unshared] = peaks(stream);
  context.fillStyle = style.ink;
  context.fillText("KV blocks", 12, top + 16, style.labels - 50);
  context.fillStyle = style.faint;
  context.fillText(`${stream.num_blocks} of ${stream.block_size} tokens`, 12, top + 34, style.labels - 20);
  context.fillStyle = style.decode;
  context.fillText(`${used} used at most`, 12, top + 52, style.labels - 20);
  context.fillStyle = style.unshared;
  context.fillText(`┄ ${unshared} without sharing`, 12, top + 70, style.labels - 20);
  context.fillStyle = style.faint;
  context.textAlign = "right";
  context.fillText(most, style.labels - 5, top + 14);
  context.fillText("0", style.labels - 5, bottom - 6);
  context.textAlign = "left";
}

function drawBlocks() {
  const height = blocks.clientHeight;
  const context = prepare(blocks.querySelector("canvas"), height);
  const bottom = height - style.axis;
  drawGrid(context, bottom);
  const each = bottom / Math.max(1, data.streams.length);
  data.streams.forEach((stream, i) => drawStream(context, stream, i * each, (i + 1) * each));
  const { step, times } = ticks();
  context.fillStyle = style.faint;
  for (const time of times) context.fillText(spellTick(time, step), xOf(time) + 3, height - style.axis / 2);
  context.fillRect(style.labels, bottom, width() - style.labels, 1);
}

function draw() {
  drawn = true;
  readStyle();
  document.getElementById("height").style.height = `${rows() * style.row}px`;
  drawLanes();
  drawBlocks();
  document.getElementById("range").textContent = `${spell(view.from)} to ${spell(view.to)}`;
}

function redraw() {
  if (drawn) requestAnimationFrame(draw);
  drawn = false;
}
