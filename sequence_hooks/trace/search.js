"use strict";

// Search by id, prompt or text. What is found is marked; Enter goes to the next, and unfolds what hides it.

const found = { query: "", lanes: [], marked: new Set(), at: -1 };
let haystacks = null;

const isFound = (index) => found.marked.has(index);

function search(query) {
  haystacks ??= lanes.map((lane) => `${lane.name}\n${lane.prompt}\n${lane.text}`.toLowerCase());
  found.query = query.trim().toLowerCase();
  const indices = found.query ? lanes.keys() : [];
  found.lanes = [...indices].filter((index) => haystacks[index].includes(found.query));
  found.at = -1;
  // A search for what most have in common would undo all folds.
  if (found.lanes.length <= MANY) update(() => found.lanes.forEach(reveal));
  const here = focused ?? rows[rowsOnScreen()[0]] ?? 0;
  if (found.lanes.length) goToFound(firstFrom(found.lanes, here));
  tellFound();
}

function goToFound(at) {
  // After the last comes the first.
  found.at = (at + found.lanes.length) % found.lanes.length;
  goTo(found.lanes[found.at]);
  tellFound();
}

function tellFound() {
  const many = found.lanes.length;
  found.marked = new Set(found.lanes);
  dom.found.textContent = !found.query ? "" : many ? `${number(found.at + 1)} of ${number(many)}` : "nothing found";
  dom.previous.disabled = dom.next.disabled = !many;
  redraw();
}

function openSearch() {
  dom.query.focus();
  dom.query.select();
}

function clearSearch() {
  dom.query.value = "";
  search("");
}

function onQueryKey(event) {
  if (event.key === "Escape") {
    clearSearch();
    dom.lanes.focus({ preventScroll: true });
  } else if (event.key === "Enter" && found.lanes.length) goToFound(found.at + (event.shiftKey ? -1 : 1));
  event.stopPropagation();
}
