"use strict";

// Ties the parts to their events, and draws for the first time.

function onResize() {
  measure();
  update(() => {});
}

function nameIdleTime() {
  const idle = idlePeriods().reduce((sum, [from, to]) => sum + to - from, 0);
  dom.cut.disabled = !idle;
  const length = spell(Number(idle.toPrecision(3)));
  dom.saved.textContent = idle ? `Cut out ${length} of idle time` : "No idle time to cut out";
}

function listen() {
  for (const section of [dom.map, dom.lanes, dom.blocks]) {
    section.addEventListener("wheel", onWheel, { passive: false });
    section.addEventListener("dblclick", onDoubleClick);
  }
  for (const section of [dom.lanes, dom.blocks]) {
    section.addEventListener("pointerdown", onPointerDown);
    section.addEventListener("pointermove", onPointerMove);
    section.addEventListener("pointerup", onPointerUp);
    section.addEventListener("pointercancel", onPointerUp);
    section.addEventListener("pointerleave", hide);
  }
  dom.map.addEventListener("pointerdown", onBrushDown);
  dom.map.addEventListener("pointermove", onBrushMove);
  dom.map.addEventListener("pointerup", onBrushUp);
  dom.lanes.addEventListener("click", onClick);
  dom.lanes.addEventListener("scroll", redraw);
  document.addEventListener("keydown", onKey);
  new ResizeObserver(onResize).observe(document.querySelector("main"));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", onResize);
}

function listenToTools() {
  dom.query.addEventListener("input", () => search(dom.query.value));
  dom.query.addEventListener("keydown", onQueryKey);
  dom.previous.addEventListener("click", () => goToFound(found.at - 1));
  dom.next.addEventListener("click", () => goToFound(found.at + 1));
  dom.fold.addEventListener("click", () => foldAll(true));
  dom.unfold.addEventListener("click", () => foldAll(false));
  dom.fold.disabled = dom.unfold.disabled = lanes.every((lane) => lane.size === 1);
  dom.idle.addEventListener("change", () => update(() => (keepsIdle = dom.idle.checked)));
  dom.cut.addEventListener("change", () => update(() => setCut(dom.cut.checked)));
}

measure();
addScales();
nameIdleTime();
if (lanes.length > MANY) lanes.forEach((_, index) => setFolded(index, true));
layRows();
listen();
listenToTools();
draw();
