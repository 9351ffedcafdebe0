"use strict";

// How numbers, times and names are written.

const UNITS = [[1, "s"], [1e-3, "ms"], [1e-6, "µs"]];
const LONG_NAME = 18;
const TAIL = 10;
const formats = [];

function number(value, digits = 0) {
  formats[digits] ??= new Intl.NumberFormat("en", { maximumFractionDigits: digits });
  return formats[digits].format(value);
}

function counted(value, noun, nouns = `${noun}s`) {
  return `${number(value)} ${value === 1 ? noun : nouns}`;
}

function unitOf(seconds) {
  return UNITS.find(([unit]) => Math.abs(seconds) >= unit) ?? UNITS.at(-1);
}

function spell(seconds) {
  // A duration, with four digits or as many as its whole part has.
  if (seconds === 0) return "0 s";
  const [unit, name] = unitOf(seconds);
  const whole = Math.floor(Math.log10(Math.max(Math.abs(seconds / unit), 1)));
  return `${number(seconds / unit, Math.max(3 - whole, 0))} ${name}`;
}

function spellTime(time, length, [unit, name] = unitOf(time)) {
  // A time, with as many digits as tell it from others in a period of this length.
  if (Math.abs(time) < length * 1e-9) return "0 s";
  const digits = Math.ceil(-Math.log10(length / 1000 / unit));
  return `${number(time / unit, Math.min(Math.max(digits, 0), 9))} ${name}`;
}

function nameOf(lane) {
  // Below its parent, a child is called by what its id adds to its parent's.
  const above = lane.parent === null ? null : lanes[lane.parent].name;
  const isRelative = above !== null && lane.name.startsWith(`${above}_`);
  return isRelative ? lane.name.slice(above.length + 1).replaceAll("_", " ") : lane.name;
}

function partsOf(name) {
  // The start and the end of a name: where there is no room, what is between them is left out.
  return name.length < LONG_NAME ? [name, ""] : [name.slice(0, -TAIL), name.slice(-TAIL)];
}
