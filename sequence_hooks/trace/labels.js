"use strict";

// The names of the rows, as elements: an item of the tree for each row that can be seen, and no others.

const DEEPEST = 6;

function drawLabels() {
  const [first, last] = rowsOnScreen();
  while (dom.labels.children.length <= last - first) dom.labels.append(newLabel());
  [...dom.labels.children].forEach((label, i) => {
    label.hidden = first + i > last;
    if (label.hidden) forget(label);
    else fill(label, first + i);
  });
}

function newLabel() {
  const label = document.createElement("div");
  label.className = "row";
  label.setAttribute("role", "treeitem");
  for (const part of ["fold", "head", "tail", "hidden"]) {
    label.appendChild(document.createElement(part === "fold" ? "i" : "span")).className = part;
  }
  return label;
}

function forget(label) {
  label.removeAttribute("id");
  label.dataset.shows = "";
}

function fill(label, row) {
  const index = rows[row], lane = lanes[index];
  label.style.transform = `translateY(${yOf(row) - style.row / 2}px)`;
  const shows = [index, folded[index], index === focused, isFound(index)].join();
  if (label.dataset.shows === shows) return;
  Object.assign(label.dataset, { shows, lane: index });
  label.id = `lane-${index}`;
  label.classList.toggle("found", isFound(index));
  label.style.setProperty("--depth", Math.min(lane.depth, DEEPEST));
  const hidden = folded[index] ? lane.size - 1 : 0;
  describe(label, lane, hidden, index === focused);
  const [head, tail] = partsOf(nameOf(lane));
  label.querySelector(".head").textContent = head;
  label.querySelector(".tail").textContent = tail;
  label.querySelector(".hidden").textContent = hidden ? `+${number(hidden)}` : "";
}

function describe(label, lane, hidden, isFocused) {
  label.setAttribute("aria-label", hidden ? `${lane.name}, ${counted(hidden, "sequence")} folded` : lane.name);
  label.setAttribute("aria-level", lane.depth + 1);
  label.setAttribute("aria-selected", isFocused);
  if (lane.size > 1) label.setAttribute("aria-expanded", !hidden);
  else label.removeAttribute("aria-expanded");
}
