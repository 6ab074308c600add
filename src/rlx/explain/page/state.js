// What is shown, in the address: #view=graph&graph=both&kernel=12. Back and Forward go through it.
const views = [];
const GRAPHS = ["compiled", "original", "both"], COLOURS = ["time", "kind"];
const state = { view: "", kernel: -1, node: -1, value: "", graph: "compiled", colour: "time" };
const listeners = [];

function view(name, build, isWhole = false) { views.push({ name, build, isWhole, section: null, tab: null, isBuilt: false }); }
const viewCalled = (name) => views.find((v) => v.name.toLowerCase() === String(name).toLowerCase()) ?? views[0];

function address() {
  const parts = [`view=${state.view.toLowerCase()}`];
  if (state.kernel >= 0) parts.push(`kernel=${state.kernel}`);
  if (state.node >= 0) parts.push(`node=${state.node}`);
  if (state.value) parts.push(`value=${state.value}`);
  if (state.graph !== "compiled" || state.node >= 0) parts.push(`graph=${state.graph}`);
  if (state.colour !== "time") parts.push(`colour=${state.colour}`);
  if (state.theme) parts.push(`theme=${state.theme}`);
  return `#${parts.join("&")}`;
}

/** Change some of it: a step that Back undoes. */
function go(change, isStep = true) {
  const before = address();
  Object.assign(state, change);
  if (address() !== before) history[isStep ? "pushState" : "replaceState"](null, "", address());
  shown(change);
}

const open = (name) => go({ view: viewCalled(name).name });
/** One selection at a time; a graph that does not show it gets the other one beside it. */
const selected = (held, isOn = "") => ({ kernel: -1, node: -1, value: "", ...held, ...(isOn && state.graph !== "both" && state.graph !== isOn && { graph: "both" }) });
const choose = (kernel) => go(selected({ kernel }, kernel >= 0 && "compiled"));
const chooseNode = (node) => go(selected({ node }, node >= 0 && "original"));
const chooseValue = (value) => go(selected({ value }));
const find = (kernel) => go({ view: "Graph", ...selected({ kernel }, "compiled") });
const findNode = (node) => go({ view: "Graph", ...selected({ node }, "original") });
const findValue = (value) => go({ view: "Graph", ...selected({ value }) });

function shown(change) {
  if ("view" in change) present(state.view);
  for (const listen of listeners) listen();
}

const oneOf = (known, name, otherwise) => (known.includes(name) ? name : otherwise);
const isValue = (key) => /^[io]\d+$/.test(key ?? "") && Number(key.slice(1)) < (key[0] === "i" ? DATA.inputs : DATA.outputs).length;

/** From the address, at the start and on Back and Forward. */
function restore() {
  const held = new URLSearchParams(location.hash.slice(1));
  const number = (name, most) => { const n = parseInt(held.get(name) ?? "-1", 10); return n >= 0 && n < most ? n : -1; };
  if (["light", "dark"].includes(held.get("theme"))) setTheme(state.theme = held.get("theme"));
  state.view = viewCalled(held.get("view") ?? "").name;
  state.kernel = number("kernel", DATA.kernels.length);
  state.node = number("node", DATA.model.nodes.length);
  state.value = isValue(held.get("value")) ? held.get("value") : "";
  state.graph = oneOf(GRAPHS, held.get("graph"), state.node >= 0 ? "both" : "compiled");
  state.colour = oneOf(COLOURS, held.get("colour"), "time");
  shown({ view: 1 });
}
addEventListener("popstate", restore);

function present(name) {
  for (const v of views) {
    const isOpen = v.name === name;
    v.section.hidden = !isOpen;
    v.tab.setAttribute("aria-selected", isOpen);
    v.tab.tabIndex = isOpen ? 0 : -1;
    if (isOpen) v.tab.scrollIntoView?.({ block: "nearest", inline: "nearest" });
    if (isOpen && !v.isBuilt) { v.isBuilt = true; v.build(v.section); }
  }
  hush();
}

function setTheme(name) {
  document.documentElement.dataset.theme = name;
  document.getElementById("theme").textContent = name === "dark" ? "Light" : "Dark";
}
