"use strict";

// What the wheel and the pointer do to the window, and to rows.

const LINE = 16;
const PINCH = 50;
let dragged = null;

function show(from, to, y) {
  update(() => setWindow(from, to), y);
}

function zoom(factor, at, y) {
  show(at - (at - view.from) * factor, at + (view.to - at) * factor, y);
}

function pan(seconds, y) {
  show(view.from + seconds, view.from + seconds + view.to - view.from, y);
}

function heightIn(event) {
  // How far below the top of the lanes the pointer is; undefined if it isn't on them.
  const y = event.clientY - dom.lanes.getBoundingClientRect().top - dom.lanes.clientTop;
  return y >= 0 && y < size.lanes ? y : undefined;
}

function onWheel(event) {
  const unit = [1, LINE, size.lanes][event.deltaMode];
  const [right, down] = [event.deltaX * unit, event.deltaY * unit];
  hide();
  if (event.ctrlKey || event.metaKey) zoomBy(down, event);
  else if (event.shiftKey || Math.abs(right) > Math.abs(down)) pan((right || down) / scale(), heightIn(event));
  else if (event.currentTarget === dom.lanes) return;
  else dom.lanes.scrollTop += down;
  event.preventDefault();
}

function zoomBy(pixels, event) {
  // A pinch arrives as a wheel with ctrl, in many small steps.
  const rate = Math.abs(pixels) < PINCH ? 0.01 : 0.003;
  const at = event.currentTarget === dom.map ? (view.from + view.to) / 2 : shownAt(event.clientX);
  zoom(Math.exp(pixels * rate), Math.min(Math.max(at, view.from), view.to), heightIn(event));
}

function onPointerDown(event) {
  const section = event.currentTarget;
  const isOnLanes = section === dom.lanes;
  if (event.button !== 0 || event.clientX >= size.width) return;
  if (isOnLanes) focusOn(rows[rowAt(heightIn(event) ?? 0)]);
  if (event.clientX < style.labels) return;
  dragged = { x: event.clientX, y: event.clientY };
  section.setPointerCapture(event.pointerId);
  section.classList.add("dragged");
}

function onPointerMove(event) {
  if (!dragged) return tell(event, event.currentTarget === dom.lanes ? aboutLane(event) : aboutBlocks(event));
  const [right, down] = [event.clientX - dragged.x, event.clientY - dragged.y];
  dragged = { x: event.clientX, y: event.clientY };
  if (event.currentTarget === dom.lanes) dom.lanes.scrollTop -= down;
  pan(-right / scale(), heightIn(event));
  hide();
}

function onPointerUp(event) {
  dragged = null;
  event.currentTarget.classList.remove("dragged");
}

function onClick(event) {
  const label = event.target.closest(".row[aria-expanded]");
  if (label && event.target.closest(".fold")) toggle(Number(label.dataset.lane));
}

function onDoubleClick(event) {
  if (event.clientX >= style.labels) show(0, shownEnd());
}
