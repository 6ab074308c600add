// What every view uses: elements, quantities as text, the tooltip.
"use strict";
const SVG = "http://www.w3.org/2000/svg";
const DATA = JSON.parse(document.getElementById("data").textContent);
DATA.kernels.forEach((k, i) => { k.i = i; });
DATA.decisions.forEach((d, i) => { d.i = i; });

const make = (tag, attributes = {}, ...children) => fill(document.createElement(tag), attributes, children);
const draw = (tag, attributes = {}, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined && value !== false) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter((c) => c !== null && c !== undefined && c !== false));
  return element;
}

/** Three significant digits in the unit that suits them. */
function scaled(value, units) {
  if (value === null || value === undefined) return "–";
  let size = Math.abs(value), i = 0;
  while (size >= 999.5 && i < units.length - 1) { size /= 1000; i += 1; }
  const digits = i === 0 || size >= 99.95 ? 0 : size >= 9.995 ? 1 : 2;
  return `${value < 0 ? "−" : ""}${size.toFixed(digits)} ${units[i]}`;
}
const time = (ns) => scaled(ns, ["ns", "µs", "ms", "s"]);
const bytes = (n) => scaled(n, ["B", "kB", "MB", "GB", "TB"]);
const flops = (n) => scaled(n, ["FLOP", "kFLOP", "MFLOP", "GFLOP", "TFLOP"]);
const count = (n) => (n === null || n === undefined ? "–" : n.toLocaleString("en").replace("-", "−"));
const plural = (n, what) => `${count(n)} ${what}${n === 1 ? "" : "s"}`;
const percent = (part) => `${(100 * part).toFixed(1)} %`;

/** The measured time of a kernel, else the predicted one. */
const kernelTime = (k) => k.measured_ns ?? k.predicted_ns;
const isMeasured = DATA.kernels.some((k) => k.measured_ns !== null);
const perCall = DATA.kernels.filter((k) => k.phase !== "prologue");
const allTime = Math.max(1e-9, perCall.reduce((sum, k) => sum + kernelTime(k), 0));
/** Whether the target states a peak for its arithmetic: its share of the roofline means something. */
const hasPeak = (k) => !k.flops || !DATA.roofs || k.arithmetic in DATA.roofs.peaks;
const shareOf = (k) => (k.phase === "prologue" ? 0 : kernelTime(k) / allTime);

/** `onnx /Conv_2` is `/Conv_2`, `matmul at block layer.0, block encoder` is `matmul at layer.0`. */
function plainName(place) {
  const at = place.indexOf(" at ");
  if (at >= 0) return `${place.slice(0, at)} at ${plainName(namesFirst(place.slice(at + 4).split(", "))[0])}`;
  const found = /^[a-z]+ (?!\()(.+)$/i.exec(place);
  return found ? found[1] : place;
}
/** Names before lines of the code that built the model. */
const isLine = (name) => /^\S+\.py:\d+$/.test(name);
const namesFirst = (names) => [...names.filter((n) => !isLine(n)), ...names.filter(isLine)];
const places = (where, most = 2) => {
  const names = [...new Set(namesFirst(where).map(plainName))];
  return names.length > most ? `${names.slice(0, most).join(", ")} and ${names.length - most} more` : names.join(", ");
};

/** How wide a text is, in pixels. */
const ruler = document.createElement("canvas").getContext("2d");
function widthOf(text, size = 12, weight = 400) {
  ruler.font = `${weight} ${size}px system-ui, sans-serif`;
  return ruler.measureText(text).width;
}

const tip = document.getElementById("tip");
function say(text, x, y) {
  tip.textContent = text;
  tip.hidden = false;
  const box = tip.getBoundingClientRect();
  tip.style.left = `${Math.max(4, Math.min(x + 14, innerWidth - box.width - 8))}px`;
  tip.style.top = `${Math.max(4, Math.min(y + 14, innerHeight - box.height - 8))}px`;
}
const hush = () => { tip.hidden = true; };

/** Text that shows while the pointer or the focus is on an element. */
function tooltip(element, text) {
  element.addEventListener("pointermove", (e) => { if (!e.buttons) say(text(), e.clientX, e.clientY); });
  element.addEventListener("pointerleave", hush);
  element.addEventListener("focus", () => {
    const box = element.getBoundingClientRect();
    if (element.matches(":focus-visible")) say(text(), Math.min(box.right, innerWidth), box.bottom);
  });
  element.addEventListener("blur", hush);
  return element;
}

/** Enter and space do what a click does. */
function pressed(element, act) {
  element.addEventListener("click", act);
  element.addEventListener("keydown", (e) => {
    if (e.key === "Enter" || e.key === " ") { e.preventDefault(); e.stopPropagation(); act(e); }
  });
  return element;
}

const button = (text, act, attributes = {}) => make("button", { type: "button", onclick: act, ...attributes }, text);
const choice = (label, options, value, act) => make("select", { "aria-label": label, onchange: (e) => act(e.target.value) },
  ...options.map(([v, t]) => make("option", { value: v, selected: v === value }, t)));
