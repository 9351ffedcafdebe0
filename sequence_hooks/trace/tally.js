"use strict";

// How many of a range of lanes are in each state, over time.

const SHORTEST_CUT = END / 10_000;
const tallies = new Map();
let wholeRun = null;

function tallyOf(index) {
  // Of a lane and all below it.
  if (!tallies.has(index)) tallies.set(index, summed(tally(index, index + lanes[index].size)));
  return tallies.get(index);
}

function tallyOfRun() {
  return (wholeRun ??= tally(0, lanes.length));
}

function tally(first, last) {
  const lengths = STATES.map(() => 0);
  for (let i = first; i < last; i++) for (const state of lanes[i].states) lengths[state]++;
  // Each ends with a time that is never reached.
  const enters = lengths.map((length) => new Float64Array(length + 1).fill(Infinity));
  const leaves = lengths.map((length) => new Float64Array(length + 1).fill(Infinity));
  const filled = STATES.map(() => 0);
  for (let i = first; i < last; i++) {
    lanes[i].states.forEach((state, bar) => {
      enters[state][filled[state]] = startOf(lanes[i], bar);
      leaves[state][filled[state]++] = lanes[i].ends[bar];
    });
  }
  for (const times of [...enters, ...leaves]) times.sort();
  return swept(enters, leaves);
}

function swept(enters, leaves) {
  const total = enters.reduce((sum, times) => sum + 2 * (times.length - 1), 0);
  const times = new Float64Array(total), counts = STATES.map(() => new Int32Array(total));
  const entered = STATES.map(() => 0), left = STATES.map(() => 0);
  let length = 0;
  for (;;) {
    let time = Infinity;
    for (let state = 0; state < STATES.length; state++) {
      time = Math.min(time, enters[state][entered[state]], leaves[state][left[state]]);
    }
    if (time === Infinity) break;
    times[length] = time;
    for (let state = 0; state < STATES.length; state++) {
      while (enters[state][entered[state]] === time) entered[state]++;
      while (leaves[state][left[state]] === time) left[state]++;
      counts[state][length] = entered[state] - left[state];
    }
    length++;
  }
  return { times: times.slice(0, length), counts: counts.map((each) => each.slice(0, length)) };
}

function summed({ times, counts }) {
  // With the integral of each count up to each time, which makes the mean over any period a subtraction.
  const sums = counts.map(() => new Float64Array(times.length));
  let most = 0;
  for (let i = 0; i < times.length; i++) {
    most = Math.max(most, counts.reduce((sum, each) => sum + each[i], 0));
    if (i === 0) continue;
    const lasted = times[i] - times[i - 1];
    counts.forEach((each, state) => (sums[state][i] = sums[state][i - 1] + each[i - 1] * lasted));
  }
  return { times, counts, sums, most };
}

function countsAt({ times, counts }, time) {
  const i = firstAfter(times, time) - 1;
  return counts.map((each) => (i < 0 ? 0 : each[i]));
}

function meansOf(summedTally, from, to) {
  const [until, before] = [sumsAt(summedTally, to), sumsAt(summedTally, from)];
  return until.map((sum, state) => (sum - before[state]) / (to - from));
}

function sumsAt({ times, counts, sums }, time) {
  const i = firstAfter(times, time) - 1;
  return sums.map((each, state) => (i < 0 ? 0 : each[i] + counts[state][i] * (time - times[i])));
}

function numComputing({ counts }, i) {
  return counts[STATES.indexOf("prefill")][i] + counts[STATES.indexOf("decode")][i];
}

function idlePeriods() {
  // When no sequence computes; none if none ever does.
  const run = tallyOfRun();
  const periods = [];
  let since = 0;
  const close = (time) => {
    if (since !== null && time - since >= SHORTEST_CUT) periods.push([since, time]);
  };
  run.times.forEach((time, i) => {
    if (numComputing(run, i)) {
      close(time);
      since = null;
    } else since ??= time;
  });
  close(END);
  return periods.length === 1 && periods[0][1] - periods[0][0] >= END ? [] : periods;
}
