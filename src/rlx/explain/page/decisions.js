// Decisions by effect; those of equal layers are one row, unless each is asked for.
view("Decisions", (root) => {
  const wanted = { text: "", verdict: "", kind: "-", isEach: false };
  const kinds = [...new Set(DATA.decisions.map((d) => d.kind))].sort();
  const found = (d) => `${d.what} ${d.kind} ${d.reason} ${d.where.join(" ")}`.toLowerCase().includes(wanted.text);
  const fits = () => {
    const all = DATA.decisions.filter((d) => (!wanted.verdict || (wanted.verdict === "yes") === d.verdict) && (!wanted.kind || (wanted.kind === "-" ? d.kind !== "schedule" : d.kind === wanted.kind)) && (!wanted.text || found(d)));
    status.textContent = `${count(all.length)} of ${plural(DATA.decisions.length, "decision")}`;
    return wanted.isEach ? all.map((d) => decisionGroup([d])) : grouped(all);
  };
  const change = (name) => (v) => { wanted[name] = v; held.set(fits()); };
  const text = make("input", { type: "search", placeholder: "text", "aria-label": "Decisions with this text", oninput: (e) => change("text")(e.target.value.toLowerCase()) });
  const status = make("span", { class: "dim", role: "status" });
  const each = make("label", { class: "check" }, make("input", { type: "checkbox", onchange: (e) => change("isEach")(e.target.checked) }), "each by itself");
  root.append(make("div", { class: "head" }, make("h2", {}, "Decisions by effect"), text,
    choice("Verdict", [["", "taken and refused"], ["yes", "taken"], ["no", "refused"]], "", change("verdict")), choice("Kind", [["-", "all but parallelisation"], ["", "every kind"], ...kinds.map((k) => [k, k === "schedule" ? "parallelisation" : k.replaceAll("_", " ")])], "-", change("kind")), each, status, exportButtons("decisions", { rows: () => held.csv() })));
  const verdict = (d) => (d.verdict ? "taken" : "refused"), quantity = (key, title, unit, text) => ({ key, title, unit, value: (d) => d[key] || null, cell: (d) => (d[key] ? text(d[key]) : ""), sort: (d) => Math.abs(d[key]) || null });
  const columns = [
    { key: "verdict", title: "verdict", value: verdict, cell: (d) => make("span", { class: d.verdict ? "yes" : "no" }, verdict(d)) },
    quantity("ns", "saves if taken", "ns", time),
    ...(DATA.decisions.some((d) => d.measured) ? measuredColumns : []),
    quantity("bytes", "traffic", "bytes", bytes),
    quantity("launches", "launches", "", count),
    { key: "count", title: "count", unit: "", value: (d) => d.all.length, cell: (d) => (d.all.length > 1 ? `×${count(d.all.length)}` : "") },
    { key: "what", title: "decision", value: (d) => d.what },
    { key: "where", title: "where", value: (d) => mergedNames(d.all), cell: (d) => mergedPlaces(d.all) },
    { key: "reason", title: "why", value: (d) => d.reason },
  ];
  const held = sortedTable(root, "Decisions", columns, fits(), "ns");
  root.filterText = (t) => { root.querySelector("select[aria-label=Kind]").value = wanted.kind = ""; text.value = t; change("text")(t.toLowerCase()); };
});

function measuredText({ all, measured }) {
  if (!measured) return "";
  const notes = [measured.own < all.length && `${count(measured.own)} of ${count(all.length)} measured`, measured.beyond && `with ${plural(measured.beyond, "other")}`].filter(Boolean);
  return make("span", {}, `${time(measured.ns)} (${time(measured.low)} to ${time(measured.high)})`, ...(notes.length ? [make("br"), make("span", { class: "dim" }, notes.join(", "))] : []));
}
const measuredColumns = [
  { key: "measured", title: "measured", unit: "ns", value: (d) => d.measured?.ns ?? null, cell: measuredText },
  { key: "low", title: "measured, low", unit: "ns", value: (d) => d.measured?.low ?? null, cell: null },
  { key: "high", title: "measured, high", unit: "ns", value: (d) => d.measured?.high ?? null, cell: null },
  { key: "own", title: "measured decisions", unit: "", value: (d) => d.measured?.own ?? null, cell: null },
];
