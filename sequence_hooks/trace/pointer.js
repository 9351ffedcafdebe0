"use strict";

// Moving

function show(from, to) {
  const length = Math.min(Math.max(to - from, SHORTEST), END);
  view.from = Math.min(Math.max(from, 0), END - length);
  view.to = view.from + length;
  redraw();
}

function zoom(factor, time) {
  show(time - (time - view.from) * factor, time + (view.to - time) * factor);
}

function pan(seconds) {
  show(view.from + seconds, view.from + seconds + view.to - view.from);
}

function onWheel(event) {
  event.preventDefault();
  if (event.shiftKey) lanes.scrollTop += event.deltaY || event.deltaX;
  else if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) pan(event.deltaX / scale());
  else zoom(1.0015 ** event.deltaY, Math.min(Math.max(timeOf(event.clientX), view.from), view.to));
  hide();
}

function onPointerMove(event) {
  if (event.buttons & 1) {
    lanes.scrollTop -= event.movementY;
    pan(-event.movementX / scale());
    hide();
  } else if (event.currentTarget === lanes) tell(event, aboutLane(event));
  else tell(event, aboutBlocks(event));
}

function onKey(event) {
  const tenth = (view.to - view.from) / 10;
  const middle = (view.from + view.to) / 2;
  const keys = {
    ArrowLeft: () => pan(-tenth),
    ArrowRight: () => pan(tenth),
    ArrowUp: () => (lanes.scrollTop -= style.row),
    ArrowDown: () => (lanes.scrollTop += style.row),
    "+": () => zoom(0.8, middle),
    "-": () => zoom(1.25, middle),
    0: () => show(0, END),
  };
  if (!(event.key in keys) || event.ctrlKey || event.metaKey) return;
  event.preventDefault();
  keys[event.key]();
}

// Hovering

function aboutLane(event) {
  const row = Math.floor((event.clientY - lanes.getBoundingClientRect().top + lanes.scrollTop) / style.row);
  const lane = data.lanes[row];
  if (!lane) return null;
  const time = timeOf(event.clientX);
  const bar = lane.bars.find(([, start, end]) => start <= time && time < end);
  const lines = [];
  if (bar && event.clientX >= style.labels) {
    const tokens = bar[3] ? `, ${bar[3]} tokens` : "";
    lines.push(`${bar[0]} for ${spell(bar[2] - bar[1])}${tokens}, from ${spell(bar[1])} to ${spell(bar[2])}`);
  }
  for (const [at, text] of lane.notes) {
    if (Math.abs(xOf(at) - event.clientX) < 6) lines.push(`${spell(at)}: ${text}`);
  }
  const ended = lane.end === null ? "not finished" : `${lane.reason} at ${spell(lane.end)}`;
  const output = lane.output_tokens === null ? "" : `${lane.output_tokens} of output, `;
  lines.push(`context of ${lane.prompt_tokens} tokens, then ${output}${ended}`);
  if (lane.parent !== null) lines.push(`child of ${lane.parent}, spawned after its token ${lane.position}`);
  return { row, title: lane.name, lines, text: lane.prompt + lane.text };
}

function aboutBlocks(event) {
  const height = (blocks.clientHeight - style.axis) / Math.max(1, data.streams.length);
  const index = Math.floor((event.clientY - blocks.getBoundingClientRect().top) / height);
  const stream = data.streams[index];
  const time = timeOf(event.clientX);
  const sample = stream?.samples.findLast(([start]) => start <= time);
  if (!sample || event.clientX < style.labels) return null;
  const [start, used, unshared, running, blocked, waiting] = sample;
  const lines = [
    `${used} of ${stream.num_blocks} blocks used, ${unshared} without sharing`,
    `${running} sequences run, ${blocked} are blocked, ${waiting} wait`,
  ];
  return { row: null, title: `step at ${spell(start)}`, lines, text: "" };
}

function tell(event, about) {
  if (!about) return hide();
  tip.replaceChildren();
  const add = (tag, text) => (tip.appendChild(document.createElement(tag)).textContent = text);
  add("b", about.title);
  for (const line of about.lines) add("span", line);
  if (about.text) add("pre", about.text);
  tip.hidden = false;
  tip.style.left = `${Math.max(0, Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 4))}px`;
  const below = event.clientY + 16;
  const fits = below + tip.offsetHeight < innerHeight;
  tip.style.top = `${fits ? below : Math.max(0, event.clientY - tip.offsetHeight - 10)}px`;
  light(about.row);
}

function hide() {
  tip.hidden = true;
  light(null);
}

function light(row) {
  if (row === hovered) return;
  hovered = row;
  redraw();
}

for (const section of [lanes, blocks]) {
  section.addEventListener("wheel", onWheel, { passive: false });
  section.addEventListener("pointermove", onPointerMove);
  section.addEventListener("pointerleave", hide);
  section.addEventListener("dblclick", () => show(0, END));
  section.addEventListener("pointerdown", (event) => {
    if (event.offsetX > section.clientWidth) return;
    section.setPointerCapture(event.pointerId);
    section.classList.add("dragged");
  });
  section.addEventListener("pointerup", () => section.classList.remove("dragged"));
}
lanes.addEventListener("scroll", redraw);
document.addEventListener("keydown", onKey);
window.addEventListener("resize", redraw);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
draw();
