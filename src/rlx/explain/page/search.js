// Search: kernels, nodes, inputs, outputs, weights and decisions by any part of their names. Enter
// zooms to it.
const MOST_FOUND = 40;

/** Each with what it is, its name, more about it, other names, and what Enter does. */
const searchable = () => [
  ...[...perCall, ...DATA.kernels.filter((k) => k.phase === "prologue")].map((k) => ["kernel", k.title, places(k.where), [`k${k.i}`, k.op, ...k.ops, ...k.where.map(plainName)], () => find(k.i)]),
  ...DATA.model.nodes.map((n, i) => ["node", n.op, places(n.names), n.names.map(plainName), () => findNode(i)]),
  ...DATA.inputs.map(([n, , s], i) => ["input", n, s, [], () => findValue(`i${i}`)]),
  ...DATA.outputs.map(([n, , s], i) => ["output", n, s, [], () => findValue(`o${i}`)]),
  ...[...weights()].map(([text, k]) => { const [name, ...shape] = text.split(" "); return ["weight", name, `${shape.join(" ")}, read by ${k.title}`, [], () => find(k.i)]; }),
  ...[...new Set(DATA.decisions.map((d) => d.what))].map((w) => ["decision", w, `${count(DATA.decisions.filter((d) => d.what === w).length)} of it`, [], () => { open("Decisions"); viewCalled("Decisions").section.filterText(w); }]),
];

/** Weights, and the kernel that shows each: one of a call, where one reads it. */
function weights() {
  const found = new Map();
  for (const k of [...perCall, ...DATA.kernels]) for (const text of k.weights) if (!found.has(text)) found.set(text, k);
  return found;
}

/** How well a row fits: 0 its name is that, 1 another of its names is, 2 its name begins so, 3 a part of
 * a name does, 4 it is within one; 5 where it does not fit. */
function fitOf([, name, , others], wanted) {
  if (name === wanted) return 0;
  if (others.includes(wanted)) return 1;
  if (name.startsWith(wanted)) return 2;
  const all = [name, ...others].filter((n) => n.includes(wanted));
  return all.some((n) => n.split(/[\s/_:]+/).some((part) => part.startsWith(wanted))) ? 3 : all.length ? 4 : 5;
}
function matching(rows, wanted) {
  const text = wanted.toLowerCase(), ranked = rows.map((row, i) => [row.lower ? fitOf(row.lower, text) : 5, i]).filter(([fit]) => fit < 5);
  return ranked.sort((a, b) => a[0] - b[0] || a[1] - b[1]).map(([, i]) => rows[i]);
}

function search() {
  const box = document.getElementById("search"), found = document.getElementById("found");
  let known = null, fits = [], at = 0;
  const close = () => { found.hidden = true; box.setAttribute("aria-expanded", "false"); box.removeAttribute("aria-activedescendant"); };
  const mark = (i) => {
    at = (i + fits.length) % fits.length;
    found.querySelectorAll("[role=option]").forEach((e, n) => e.setAttribute("aria-selected", n === at));
    box.setAttribute("aria-activedescendant", `found${at}`);
    found.children[at]?.scrollIntoView({ block: "nearest" });
  };
  found.addEventListener("pointerdown", (e) => e.preventDefault()); // the focus stays in the box
  const take = (i) => { const it = fits[i]; close(); if (it) it[4](); };
  function show() {
    const wanted = box.value.trim();
    known ??= searchable().map((row) => Object.assign(row, { lower: row.map((v) => (Array.isArray(v) ? v.map((n) => n.toLowerCase()) : String(v).toLowerCase())) }));
    const all = wanted ? matching(known, wanted) : [];
    fits = all.slice(0, MOST_FOUND);
    const option = ([sort, name, more], i) => make("li", { role: "option", id: `found${i}`, "aria-selected": i === 0, onclick: () => take(i) }, make("span", { class: "dim" }, sort), make("span", {}, make("b", {}, breakable(name)), " ", breakable(more)));
    const rest = !all.length ? "Nothing of that name" : all.length > fits.length ? `and ${count(all.length - fits.length)} more: write more of the name` : "";
    found.replaceChildren(...fits.map(option), ...(rest ? [make("li", { class: "dim", role: "presentation" }, rest)] : []));
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
