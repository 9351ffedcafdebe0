"use strict";

// The lanes. Only rows that can be seen are drawn, and of each row no more than a bar per column of pixels.

const HEIGHTS = { prefill: 0.7, decode: 0.7, blocked: 0.35, waiting: 0.08 };
const ON = { prefill: "on-prefill", decode: "on-decode" };
const ARROW_HEAD = 7;
const MARK = 4;
let hovered = null;

const yOf = (row) => (row + 0.5) * style.row - size.scroll;

function rowsOnScreen() {
  size.scroll = dom.lanes.scrollTop;
  const last = Math.floor((size.scroll + size.lanes) / style.row);
  return [Math.max(Math.floor(size.scroll / style.row), 0), Math.min(rows.length - 1, last)];
}

function drawLanes() {
  const context = prepare(dom.pane.querySelector("canvas"), size.lanes);
  const [first, last] = rowsOnScreen();
  const each = (drawRow) => {
    for (let row = first; row <= last; row++) drawRow(context, row, lanes[rows[row]]);
  };
  each(drawBackground);
  drawGrid(context, size.lanes);
  clipToTimes(context, size.lanes, () => {
    each((context, row, lane) => (folded[rows[row]] ? drawStack : drawBars)(context, row, lane));
    drawArrows(context, first, last);
    each(drawMarks);
    drawBreaks(context, size.lanes);
  });
  if (!rows.length && lanes.length) drawNobody(context);
}

function drawNobody(context) {
  context.fillStyle = style.faint;
  context.fillText("No sequence is alive in the time shown.", style.labels + 12, style.row / 2 + 2);
}

function drawBackground(context, row, lane) {
  const index = rows[row];
  const color = isFound(index) ? "found" : index === focused ? "band" : lane.request % 2 ? "stripe" : null;
  if (color === null) return;
  context.fillStyle = style[color];
  context.fillRect(0, yOf(row) - style.row / 2, size.width, style.row);
}

function drawBars(context, row, lane) {
  let i = firstAfter(lane.ends, view.realFrom);
  while (i < lane.ends.length && startOf(lane, i) < view.realTo) {
    const left = Math.max(xOf(startOf(lane, i)), style.labels - 1);
    const right = Math.min(xOf(lane.ends[i]), size.width);
    drawBar(context, row, lane, i, left, Math.max(right - left, 1));
    // Of the bars that end in one column of pixels, the first is drawn.
    i = right - left >= 1 ? i + 1 : Math.max(i + 1, firstAfter(lane.ends, timeOf(Math.floor(left) + 1)));
  }
}

function drawBar(context, row, lane, i, left, length) {
  const state = STATES[lane.states[i]];
  const height = Math.max(style.row * HEIGHTS[state], 2);
  context.fillStyle = style[state];
  context.fillRect(left, yOf(row) - height / 2, length, height);
  if (!(state in ON) || length < 50) return;
  const text = `${state} ${number(lane.tokens[i])}`;
  if (context.measureText(text).width > length - 10) return;
  context.fillStyle = style[ON[state]];
  context.fillText(text, left + 5, yOf(row) + 0.5);
}

function isMarked(note) {
  return /^(preempted|gave up|KV)/.test(note.text);
}

function marksOf(index) {
  // The times at which a lane, or any that is folded into it, has a diamond.
  const until = folded[index] ? index + lanes[index].size : index + 1;
  const key = folded[index] ? "treeMarks" : "marks";
  lanes[index][key] ??= Float64Array.from(
    lanes.slice(index, until).flatMap((lane) => lane.notes.filter(isMarked).map((note) => note.time)),
  ).sort();
  return lanes[index][key];
}

function drawMarks(context, row) {
  const marks = marksOf(rows[row]);
  context.fillStyle = style.note;
  let free = -Infinity;
  for (let i = firstFrom(marks, view.realFrom); i < marks.length && marks[i] <= view.realTo; i++) {
    const [x, y] = [xOf(marks[i]), yOf(row)];
    if (x < free) continue;
    free = x + MARK;
    context.beginPath();
    for (const [dx, dy] of [[0, -1], [1, 0], [0, 1], [-1, 0]]) context.lineTo(x + 1.4 * MARK * dx, y + 1.4 * MARK * dy);
    context.fill();
  }
}

// Arrows

function drawArrows(context, first, last) {
  const passing = new Set();
  const isSeen = (row) => row >= first && row <= last;
  for (const arrow of arrows) {
    const [source, target] = [rowOf[arrow.source], rowOf[arrow.target]];
    if (source < 0 || target < 0 || Math.max(source, target) < first || Math.min(source, target) > last) continue;
    if (arrow.start > view.realTo || arrow.end < view.realFrom) continue;
    if (!isSeen(arrow.kind === "spawn" ? target : source)) {
      // Of the arrows from or to children that are out of sight, one is seen in each column of pixels.
      const key = `${arrow.kind} ${Math.min(source, target)} ${Math.round(xOf(arrow.end))}`;
      if (passing.has(key)) continue;
      passing.add(key);
    }
    drawArrow(context, arrow, source, target);
  }
}

function drawArrow(context, { kind, source: from, start, target: to, end }, source, target) {
  const beside = (row) => Math.min(Math.max(yOf(row), -style.row), size.lanes + style.row);
  const [x, y, tipY] = [Math.min(xOf(end), size.width + ARROW_HEAD), beside(source), beside(target)];
  const way = Math.sign(target - source);
  const edge = tipY - way * style.row * 0.35;
  const isFaded = hovered !== null && hovered !== from && hovered !== to;
  context.globalAlpha = isFaded ? 0.4 : 1;
  context.strokeStyle = context.fillStyle = style[kind];
  context.lineWidth = hovered !== null && !isFaded ? 2.5 : 1.25;
  context.setLineDash(kind === "merge" ? [4, 3] : []);
  context.beginPath();
  context.moveTo(Math.max(xOf(start), style.labels - ARROW_HEAD), y);
  context.lineTo(x, y);
  context.lineTo(x, edge);
  context.stroke();
  context.setLineDash([]);
  context.beginPath();
  context.moveTo(x, edge);
  context.lineTo(x - 4, edge - way * ARROW_HEAD);
  context.lineTo(x + 4, edge - way * ARROW_HEAD);
  context.fill();
  context.globalAlpha = 1;
}
