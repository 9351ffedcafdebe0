"use strict";

// What the keys do: the window with + - 0 and the arrows, rows with the arrows and Enter, the search with a slash.

function keyActions() {
  const tenth = (view.to - view.from) / 10;
  const middle = (view.from + view.to) / 2;
  const fold = () => focused !== null && toggle(focused);
  return {
    ArrowLeft: () => pan(-tenth),
    ArrowRight: () => pan(tenth),
    ArrowUp: () => moveFocus(-1),
    ArrowDown: () => moveFocus(1),
    Enter: fold,
    " ": fold,
    "+": () => zoom(0.8, middle),
    "-": () => zoom(1.25, middle),
    0: () => show(0, shownEnd()),
    "/": openSearch,
    Escape: clearSearch,
  };
}

function onKey(event) {
  const actions = keyActions();
  if (!(event.key in actions) || event.ctrlKey || event.metaKey || event.altKey) return;
  const presses = [" ", "Enter"].includes(event.key);
  if (presses && event.target.closest("button, input")) return;
  event.preventDefault();
  if (presses || event.key.startsWith("Arrow")) dom.lanes.focus({ preventScroll: true });
  actions[event.key]();
}
