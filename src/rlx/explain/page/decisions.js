// Decisions by effect; those of equal layers are one row, unless each is asked for.
view("Decisions", (root) => {
  const wanted = { text: "", verdict: "", kind: "-", isEach: false };
  const kinds = [...new Set(DATA.decisions.map((d) => d.kind))].sort();
  const found = (d) => `${d.what} ${d.kind} ${d.reason} ${d.where.join(" ")}`.toLowerCase().includes(wanted.text);
  const fits = () => {
    const all = DATA.decisions.filter((d) => (!wanted.verdict || (wanted.verdict === "yes") === d.verdict) && (!wanted.kind || (wanted.kind === "-" ? d.kind !== "schedule" : d.kind === wanted.kind)) && (!wanted.text || found(d)));
    status.textContent = `${count(all.length)} of ${plural(DATA.decisions.length, "decision")}`;
    return wanted.isEach ? all.map((d) => ({ ...d, all: [d] })) : grouped(all);
  };
  const change = (name) => (v) => { wanted[name] = v; held.set(fits()); };
  const text = make("input", { type: "search", placeholder: "text", "aria-label": "Decisions with this text", oninput: (e) => change("text")(e.target.value.toLowerCase()) });
  const status = make("span", { class: "dim", role: "status" });
  const each = make("label", { class: "check" }, make("input", { type: "checkbox", onchange: (e) => change("isEach")(e.target.checked) }), "each by itself");
  root.append(make("div", { class: "head" }, make("h2", {}, "Decisions by effect"), text,
    choice("Verdict", [["", "taken and refused"], ["yes", "taken"], ["no", "refused"]], "", change("verdict")), choice("Kind", [["-", "all but parallelisation"], ["", "every kind"], ...kinds.map((k) => [k, k === "schedule" ? "parallelisation" : k.replaceAll("_", " ")])], "-", change("kind")), each, status, exportButtons("decisions", { rows: () => held.csv() })));
  const measured = (d) => (d.measured ? `${time(d.measured.ns)} (${time(d.measured.low)} to ${time(d.measured.high)})` : "");
  const columns = [
    ["verdict", "verdict", (d) => (d.verdict ? "taken" : "refused"), (d) => make("span", { class: d.verdict ? "yes" : "no" }, d.verdict ? "taken" : "refused"), false],
    ["ns", "saves if taken", (d) => Math.abs(d.ns), (d) => (d.ns ? time(d.ns) : ""), true],
    ...(DATA.decisions.some((d) => d.measured) ? [["measured", "measured", (d) => d.measured?.ns ?? -Infinity, measured, true]] : []),
    ["bytes", "traffic", (d) => d.bytes, (d) => (d.bytes ? bytes(d.bytes) : ""), true],
    ["launches", "launches", (d) => d.launches, (d) => (d.launches ? count(d.launches) : ""), true],
    ["count", "count", (d) => d.all.length, (d) => (d.all.length > 1 ? `×${d.all.length}` : ""), true],
    ["what", "decision", (d) => d.what, (d) => d.what, false],
    ["where", "where", (d) => mergedPlaces(d.all), (d) => mergedPlaces(d.all), false],
    ["reason", "why", (d) => d.reason, (d) => d.reason, false],
  ];
  const held = sortedTable(root, "Decisions", columns, fits(), "ns");
  root.filterText = (t) => { root.querySelector("select[aria-label=Kind]").value = wanted.kind = ""; text.value = t; change("text")(t.toLowerCase()); };
});
