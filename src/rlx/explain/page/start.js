// Puts the views together: tabs, keys, the theme, the search.
function open(name) {
  for (const v of views) {
    const isOpen = v.name === name;
    v.section.hidden = !isOpen;
    v.tab.setAttribute("aria-selected", isOpen);
    v.tab.tabIndex = isOpen ? 0 : -1;
    if (isOpen && !v.isBuilt) { v.isBuilt = true; v.build(v.section); }
  }
  hush();
}

function begin() {
  document.getElementById("name").textContent = DATA.title;
  document.getElementById("about").textContent = DATA.about;
  document.getElementById("about").title = DATA.about;
  const tabs = document.getElementById("tabs"), main = document.getElementById("main");
  views.forEach((v, i) => {
    v.section = make("section", { class: v.isWhole ? "whole" : null, role: "tabpanel", id: `view${i}`, "aria-label": v.name });
    v.tab = make("button", { type: "button", role: "tab", "aria-controls": `view${i}`, onclick: () => open(v.name) }, v.name, make("kbd", {}, `${i + 1}`));
    tabs.append(v.tab);
    main.append(v.section);
  });
  tabs.addEventListener("keydown", (e) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[e.key];
    if (!step) return;
    const now = views.findIndex((v) => v.tab === document.activeElement), next = views[(now + step + views.length) % views.length];
    open(next.name);
    next.tab.focus();
  });
  theme();
  search();
  document.addEventListener("keydown", (e) => {
    if (/^(INPUT|SELECT|TEXTAREA)$/.test(e.target.tagName) || e.ctrlKey || e.metaKey || e.altKey) return;
    if (e.key === "/") { e.preventDefault(); document.getElementById("search").focus(); }
    else if (views[Number(e.key) - 1]) { const v = views[Number(e.key) - 1]; open(v.name); v.tab.focus(); }
  });
  open("Overview");
  document.documentElement.dataset.ready = "yes";
}

function theme() {
  const button = document.getElementById("theme"), root = document.documentElement;
  const set = (name) => { root.dataset.theme = name; button.textContent = name === "dark" ? "Light" : "Dark"; };
  set(location.hash === "#dark" || (location.hash !== "#light" && matchMedia("(prefers-color-scheme: dark)").matches) ? "dark" : "light");
  button.addEventListener("click", () => set(root.dataset.theme === "dark" ? "light" : "dark"));
}

/** Enter goes to the kernel that fits best; with none, to the decisions that have the text. */
function search() {
  const box = document.getElementById("search"), names = document.getElementById("names");
  const known = [...new Set(DATA.kernels.flatMap((k) => [k.title, ...k.where]))].slice(0, 2000);
  box.addEventListener("focus", () => { if (!names.children.length) names.append(...known.map((n) => make("option", { value: n }))); }, { once: true });
  let last = "", at = -1;
  box.addEventListener("keydown", (e) => {
    if (e.key === "Escape") { box.value = ""; box.blur(); return; }
    if (e.key !== "Enter" || !box.value) return;
    const wanted = box.value.toLowerCase(), fits = DATA.kernels.filter((k) => k.find.includes(wanted));
    at = wanted === last ? at + 1 : 0;
    last = wanted;
    if (fits.length) { open("Graph"); choose(fits[at % fits.length].i); return; }
    open("Decisions");
    views.find((v) => v.name === "Decisions").section.filterText(box.value);
  });
}

begin();
