"use strict";

// The tooltip at the pointer: what a sequence, a folded tree or the KV blocks are at that time.

const NEAR = 6;

const windowLength = () => view.realTo - view.realFrom;

function aboutLane(event) {
  const index = rows[rowAt(event.clientY - dom.lanes.getBoundingClientRect().top - dom.lanes.clientTop)];
  if (index === undefined) return null;
  const lane = lanes[index];
  const lines = event.clientX < style.labels ? [] : aboutTime(index, event.clientX);
  const ended = lane.end === null ? "not finished" : `${lane.reason} at ${spellTime(lane.end, windowLength())}`;
  const output = lane.output_tokens === null ? "" : `${number(lane.output_tokens)} of output, `;
  lines.push(`context of ${counted(lane.prompt_tokens, "token")}, then ${output}${ended}`);
  if (lane.parent !== null) {
    lines.push(`child of ${lanes[lane.parent].name}, spawned after its token ${number(lane.position)}`);
  }
  return { index, title: lane.name, lines, text: lane.prompt + lane.text };
}

function aboutTime(index, x) {
  const lane = lanes[index], time = timeOf(x);
  const notes = lane.notes.filter((note) => Math.abs(xOf(note.time) - x) < NEAR);
  return [
    ...aboutBreak(x),
    ...(folded[index] ? aboutTree(index, time) : aboutBar(lane, time)),
    ...notes.map((note) => `${spellTime(note.time, windowLength())}: ${note.text}`),
  ];
}

function aboutBar(lane, time) {
  const bar = barAt(lane, time);
  if (bar < 0) return [];
  const [from, to] = [startOf(lane, bar), lane.ends[bar]];
  const tokens = lane.tokens[bar] ? `, ${counted(lane.tokens[bar], "token")}` : "";
  const times = [from, to].map((each) => spellTime(each, to - from));
  return [`${STATES[lane.states[bar]]} for ${spell(to - from)}${tokens}, from ${times[0]} to ${times[1]}`];
}

function aboutTree(index, time) {
  const counts = countsAt(tallyOf(index), time);
  const parts = STATES.map((state, i) => [counts[i], state]).filter(([count]) => count);
  const doing = parts.map(([count, state]) => `${number(count)} ${state}`).join(", ") || "none alive";
  return [`${counted(lanes[index].size, "sequence")} folded; at ${spellTime(time, windowLength())}: ${doing}`];
}

function aboutBreak(x) {
  const cut = breaks().find((each) => Math.abs(xOf(cuts.from[each]) - x) < NEAR);
  return cut === undefined ? [] : [`${spell(cuts.to[cut] - cuts.from[cut])} of idle time is cut out here`];
}

function aboutBlocks(event) {
  const height = (size.blocks - style.axis) / Math.max(1, streams.length);
  const stream = streams[Math.floor((event.clientY - dom.blocks.getBoundingClientRect().top) / height)];
  if (!stream || event.clientX < style.labels) return null;
  const i = firstAfter(stream.times, timeOf(event.clientX)) - 1;
  if (i < 0) return null;
  const [, used, unshared, running, blocked, waiting] = stream.samples[i];
  const lines = [
    `${number(used)} of ${counted(stream.num_blocks, "block")} used, ${number(unshared)} without sharing`,
    `${counted(running, "sequence")} running, ${number(blocked)} blocked, ${number(waiting)} waiting`,
    ...aboutBreak(event.clientX),
  ];
  return { index: null, title: `step at ${spellTime(stream.times[i], windowLength())}`, lines, text: "" };
}

function tell(event, about) {
  if (!about) return hide();
  dom.tip.replaceChildren();
  const add = (tag, text) => (dom.tip.appendChild(document.createElement(tag)).textContent = text);
  add("b", about.title);
  for (const line of about.lines) add("span", line);
  if (about.text) add("pre", about.text);
  dom.tip.hidden = false;
  dom.tip.style.left = `${Math.max(0, Math.min(event.clientX + 14, innerWidth - dom.tip.offsetWidth - 4))}px`;
  const below = event.clientY + 16;
  const fits = below + dom.tip.offsetHeight < innerHeight;
  dom.tip.style.top = `${fits ? below : Math.max(0, event.clientY - dom.tip.offsetHeight - 10)}px`;
  light(about.index);
}

function hide() {
  dom.tip.hidden = true;
  light(null);
}

function light(index) {
  if (index === hovered) return;
  hovered = index;
  redraw();
}
