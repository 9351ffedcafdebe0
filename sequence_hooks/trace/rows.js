"use strict";

// Which lanes have a row: those of which a sequence is alive in the window, and that no fold hides.

const MANY = 200;
const folded = new Uint8Array(lanes.length);
const rowOf = new Int32Array(lanes.length);
let rows = [];
let keepsIdle = false;
let focused = null;

function layRows() {
  const from = view.from > 0 ? view.realFrom : -Infinity;
  const to = view.to < shownEnd() ? view.realTo : Infinity;
  rows = [];
  rowOf.fill(-1);
  for (let i = 0; i < lanes.length; ) {
    const isShown = keepsIdle || (lanes[i].treeEnd > from && lanes[i].treeStart < to);
    if (isShown) rowOf[i] = rows.push(i) - 1;
    i += isShown && !folded[i] ? 1 : lanes[i].size;
  }
  dom.height.style.height = `${rows.length * style.row}px`;
}

function rowNear(index) {
  // The row of a lane or, if it has none, of the closest lane above: of the fold that hides it, if one does.
  return Math.max(firstAfter(rows, index) - 1, 0);
}

function rowAt(y) {
  return Math.floor((dom.lanes.scrollTop + y) / style.row);
}

function update(change, y = 0) {
  // Changes what is shown; the row at y stays there, as far as the lanes can be scrolled.
  const row = Math.min(rowAt(y), rows.length - 1);
  const [kept, top] = [rows[row], row * style.row - dom.lanes.scrollTop];
  const isAtTop = dom.lanes.scrollTop === 0 && y === 0;
  change();
  layRows();
  if (kept !== undefined && !isAtTop) dom.lanes.scrollTop = rowNear(kept) * style.row - top;
  if (focused !== null && rowOf[focused] < 0) focusOn(rows[rowNear(focused)]);
  redraw();
}

// Folding

function setFolded(index, isFolded) {
  folded[index] = Number(isFolded && lanes[index].size > 1);
}

function foldAll(isFolded) {
  update(() => lanes.forEach((lane, index) => setFolded(index, isFolded)));
}

function toggle(index) {
  update(() => setFolded(index, !folded[index]));
}

function reveal(index) {
  for (let above = lanes[index].parent; above !== null; above = lanes[above].parent) setFolded(above, false);
}

// Moving to a lane

function focusOn(index) {
  focused = index ?? null;
  if (focused === null) dom.lanes.removeAttribute("aria-activedescendant");
  else dom.lanes.setAttribute("aria-activedescendant", `lane-${focused}`);
  redraw();
}

function scrollToRow(row) {
  const [top, bottom] = [row * style.row, (row + 1) * style.row];
  if (top < dom.lanes.scrollTop) dom.lanes.scrollTop = top;
  else if (bottom > dom.lanes.scrollTop + size.lanes) dom.lanes.scrollTop = bottom - size.lanes;
}

function moveFocus(step) {
  if (!rows.length) return;
  const isNew = focused === null || rowOf[focused] < 0;
  const row = isNew ? Math.ceil(dom.lanes.scrollTop / style.row) : rowOf[focused] + step;
  focusOn(rows[Math.min(Math.max(row, 0), rows.length - 1)]);
  scrollToRow(rowOf[focused]);
}

function goTo(index) {
  // Shows a lane in the middle, at a time when its sequence is alive.
  const [from, to] = [toShown(lanes[index].start), toShown(lanes[index].last)];
  const length = view.to - view.from;
  update(() => {
    reveal(index);
    if (to <= view.from || from >= view.to) {
      const start = from - Math.max(length - (to - from), 0) / 2;
      setWindow(start, start + length);
    }
  });
  focusOn(index);
  dom.lanes.scrollTop = (rowNear(index) + 0.5) * style.row - size.lanes / 2;
}
