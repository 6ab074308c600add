"use strict";
// What every view uses: elements, number formats, the tooltip, and the selected kernel.
const SVG = "http://www.w3.org/2000/svg";
const DATA = JSON.parse(document.getElementById("data").textContent);
const views = [];
const chosen = { kernel: -1, listeners: [] };

function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  return fill(element, attributes, children);
}

function draw(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined && value !== false) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter((c) => c !== null && c !== undefined));
  return element;
}

function scaled(value, steps, units) {
  if (value === null || value === undefined) return "–";
  const sign = value < 0 ? "−" : "";
  let size = Math.abs(value), i = 0;
  while (size >= steps && i < units.length - 1) { size /= steps; i += 1; }
  const digits = size >= 100 || Number.isInteger(size) ? 0 : size >= 10 ? 1 : 2;
  return `${sign}${size.toFixed(digits)} ${units[i]}`;
}

const time = (ns) => scaled(ns, 1000, ["ns", "µs", "ms", "s"]);
const bytes = (n) => scaled(n, 1000, ["B", "kB", "MB", "GB"]);
const count = (n) => (n === null || n === undefined ? "–" : n.toLocaleString("en"));

const tip = document.getElementById("tip");
function say(text, x, y) {
  tip.textContent = text;
  tip.hidden = false;
  const box = tip.getBoundingClientRect();
  tip.style.left = `${Math.max(4, Math.min(x + 14, innerWidth - box.width - 8))}px`;
  tip.style.top = `${Math.max(4, Math.min(y + 14, innerHeight - box.height - 8))}px`;
}
function hush() { tip.hidden = true; }

/** Text that shows while the pointer or the focus is on an element. */
function tooltip(element, text) {
  element.addEventListener("pointermove", (e) => say(text(), e.clientX, e.clientY));
  element.addEventListener("pointerleave", hush);
  element.addEventListener("focus", () => {
    const box = element.getBoundingClientRect();
    say(text(), box.right, box.bottom);
  });
  element.addEventListener("blur", hush);
  return element;
}

/** Enter and space do what a click does. */
function pressed(element, act) {
  element.addEventListener("click", act);
  element.addEventListener("keydown", (e) => {
    if (e.key === "Enter" || e.key === " ") { e.preventDefault(); act(e); }
  });
  return element;
}

function choose(kernel) {
  chosen.kernel = kernel;
  for (const listen of chosen.listeners) listen(kernel);
}

function view(name, build, isWhole = false) { views.push({ name, build, isWhole, section: null, isBuilt: false }); }

/** The measured time of a kernel, else the predicted one. */
const kernelTime = (k) => (k.measured_ns ?? k.predicted_ns);
