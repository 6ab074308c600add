// Search: kernels, nodes, values, buffers and decisions by any part of their names. Enter zooms to it.
const searchable = () => [
  ...DATA.kernels.map((k) => ["kernel", k.title, places(k.where), `${k.title} ${k.op} ${k.ops.join(" ")} ${k.where.join(" ")} k${k.i}`, () => find(k.i)]),
  ...DATA.model.nodes.map((n, i) => ["node", n.op, places(n.names), `${n.op} ${n.names.join(" ")}`, () => go({ view: "Graph", node: i, kernel: -1 })]),
  ...DATA.inputs.map(([n, s]) => ["input", n, s, n, () => open("Overview")]),
  ...DATA.outputs.map(([n, s]) => ["output", n, s, n, () => open("Overview")]),
  ...[...new Set(DATA.decisions.map((d) => d.what))].map((w) => ["decision", w, `${count(DATA.decisions.filter((d) => d.what === w).length)} of it`, w, () => { open("Decisions"); viewCalled("Decisions").section.filterText(w); }]),
];
const MOST_FOUND = 40;

function search() {
  const box = document.getElementById("search"), found = document.getElementById("found");
  let known = null, fits = [], at = 0;
  const close = () => { found.hidden = true; box.setAttribute("aria-expanded", "false"); box.removeAttribute("aria-activedescendant"); };
  const mark = (i) => {
    at = (i + fits.length) % fits.length;
    [...found.children].forEach((e, n) => e.setAttribute("aria-selected", n === at));
    box.setAttribute("aria-activedescendant", `found${at}`);
    found.children[at]?.scrollIntoView({ block: "nearest" });
  };
  const take = (i) => { const it = fits[i]; close(); if (it) it[4](); };
  function show() {
    const wanted = box.value.trim().toLowerCase();
    known ??= searchable().map((row) => { row[3] = row[3].toLowerCase(); return row; });
    fits = wanted ? known.filter((row) => row[3].includes(wanted)).slice(0, MOST_FOUND) : [];
    found.replaceChildren(...(fits.length ? fits.map(([sort, name, more], i) => make("li", { role: "option", id: `found${i}`, "aria-selected": i === 0, onpointerdown: (e) => { e.preventDefault(); take(i); } }, make("span", { class: "dim" }, sort), make("b", {}, name), make("span", {}, more)))
      : [make("li", { class: "dim" }, "Nothing of that name")]));
    found.hidden = !wanted;
    box.setAttribute("aria-expanded", String(!found.hidden));
    at = 0;
  }
  box.addEventListener("input", show);
  box.addEventListener("focus", () => { if (box.value) show(); });
  box.addEventListener("blur", close);
  box.addEventListener("keydown", (e) => {
    if (e.key === "Escape") { box.value = ""; close(); box.blur(); }
    else if (e.key === "ArrowDown" && fits.length) { e.preventDefault(); mark(at + 1); }
    else if (e.key === "ArrowUp" && fits.length) { e.preventDefault(); mark(at - 1); }
    else if (e.key === "Enter" && fits.length) { e.preventDefault(); take(at); }
  });
}
