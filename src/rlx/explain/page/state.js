// What is shown, in the address: #view=graph&kernel=12. Back and Forward go through it.
const views = [];
const state = { view: "", kernel: -1, node: -1 };
const listeners = { kernel: [], node: [] };

function view(name, build, isWhole = false) { views.push({ name, build, isWhole, section: null, tab: null, isBuilt: false }); }
const viewCalled = (name) => views.find((v) => v.name.toLowerCase() === String(name).toLowerCase()) ?? views[0];

function address() {
  const parts = [`view=${state.view.toLowerCase()}`];
  if (state.kernel >= 0) parts.push(`kernel=${state.kernel}`);
  if (state.node >= 0) parts.push(`node=${state.node}`);
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
const choose = (kernel) => go({ kernel, node: -1 });
const chooseNode = (node) => go({ node, kernel: -1 });
const find = (kernel) => go({ view: "Graph", kernel, node: -1 });

function shown(change) {
  if ("view" in change) present(state.view);
  if ("kernel" in change) for (const listen of listeners.kernel) listen(state.kernel);
  if ("node" in change) for (const listen of listeners.node) listen(state.node);
}

/** From the address, at the start and on Back and Forward. */
function restore() {
  const held = new URLSearchParams(location.hash.slice(1));
  const number = (name, most) => { const n = parseInt(held.get(name) ?? "-1", 10); return n >= 0 && n < most ? n : -1; };
  if (["light", "dark"].includes(held.get("theme"))) setTheme(state.theme = held.get("theme"));
  state.view = viewCalled(held.get("view") ?? "").name;
  state.kernel = number("kernel", DATA.kernels.length);
  state.node = number("node", DATA.model.nodes.length);
  shown({ view: 1, kernel: 1, node: 1 });
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
