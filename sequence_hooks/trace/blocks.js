"use strict";

// KV blocks over time, one area for each scheduler, and the time axis below them.

const USED = 1, UNSHARED = 2;
const HEADROOM = 14;

function addScales() {
  streams.forEach((stream, i) => {
    const mostOf = (index) => stream.samples.reduce((most, each) => Math.max(most, each[index]), 0);
    stream.most = [USED, UNSHARED].map(mostOf);
    const scale = dom.blocks.appendChild(document.createElement("div"));
    scale.className = "scale";
    scale.style.top = `calc((100% - var(--axis)) * ${i / streams.length} + 8px)`;
    const say = (tag, text, kind = "") => {
      Object.assign(scale.appendChild(document.createElement(tag)), { textContent: text, className: kind });
    };
    say("b", "KV blocks");
    say("span", `${counted(stream.num_blocks, "block")} of ${counted(stream.block_size, "token")}`);
    say("span", `${number(stream.most[0])} used at most`, "used");
    say("span", `┄ ${number(stream.most[1])} without sharing`, "unshared");
  });
}

function columnsOf(stream, index) {
  // The most of each column of pixels: what is narrower than a pixel must not vanish.
  const columns = [];
  const { samples, times } = stream;
  for (let i = Math.max(0, firstAfter(times, view.realFrom) - 1); i < times.length && times[i] <= view.realTo; i++) {
    const x = Math.round(Math.max(xOf(times[i]), style.labels));
    const last = columns.at(-1);
    const value = samples[i][index];
    if (last && last[0] === x) columns[columns.length - 1] = [x, Math.max(last[1], value), value];
    else columns.push([x, value, value]);
  }
  return columns;
}

function traceSteps(context, columns, yOfCount) {
  columns.forEach(([x, most, latest], i) => {
    if (i) context.lineTo(x, yOfCount(columns[i - 1][2]));
    context.lineTo(x, yOfCount(most));
    context.lineTo(x, yOfCount(latest));
  });
  if (columns.length) context.lineTo(Math.min(xOf(END), size.width), yOfCount(columns.at(-1)[2]));
}

function drawStream(context, stream, top, bottom) {
  const most = Math.max(1, ...stream.most);
  const yOfCount = (count) => bottom - ((bottom - top - HEADROOM) * count) / most;
  const used = columnsOf(stream, USED);
  clipToTimes(context, bottom, () => {
    context.fillStyle = style.blocks;
    context.beginPath();
    context.moveTo(used.length ? used[0][0] : 0, bottom);
    traceSteps(context, used, yOfCount);
    context.lineTo(Math.min(xOf(END), size.width), bottom);
    context.fill();
    context.strokeStyle = style.unshared;
    context.setLineDash([3, 3]);
    context.beginPath();
    traceSteps(context, columnsOf(stream, UNSHARED), yOfCount);
    context.stroke();
    context.setLineDash([]);
  });
  context.fillStyle = style.faint;
  context.textAlign = "right";
  context.fillText(number(most), style.labels - 5, top + HEADROOM);
  context.fillText("0", style.labels - 5, bottom - 7);
  context.textAlign = "left";
}

function drawBlocks() {
  const context = prepare(dom.blocks.querySelector("canvas"), size.blocks);
  const bottom = size.blocks - style.axis;
  drawGrid(context, bottom);
  const each = bottom / Math.max(1, streams.length);
  streams.forEach((stream, i) => drawStream(context, stream, i * each, (i + 1) * each));
  clipToTimes(context, bottom, () => drawBreaks(context, bottom));
  drawAxis(context, bottom);
}

function drawAxis(context, bottom) {
  const { step, times } = ticks();
  const middle = bottom + style.axis / 2;
  context.fillStyle = style.faint;
  context.fillRect(style.labels, bottom, size.width - style.labels, 1);
  for (const time of times) {
    context.fillText(spellTime(time, step * 1000, unitOf(view.realTo)), xOf(time) + 3, middle);
  }
  context.strokeStyle = style.ink;
  context.lineWidth = 1.5;
  context.beginPath();
  for (const cut of breaks()) {
    for (const dx of [-2, 2]) {
      context.moveTo(xOf(cuts.from[cut]) + dx - 2, bottom + 5);
      context.lineTo(xOf(cuts.from[cut]) + dx + 2, bottom - 5);
    }
  }
  context.stroke();
}
