// The first page: what a call takes and where the time goes, what was compiled, what saved most.
view("Overview", (root) => {
  root.append(make("p", { class: "headline" }, DATA.headline));
  if (DATA.step) root.append(make("h2", {}, "A step against the memory floor"), ...DATA.step.text.map((t) => make("p", { class: "note" }, t)), table(DATA.step.columns, DATA.step.rows, [0, 1, 2, 3, 4, 5, 6, 7, 8]));
  whereTimeGoes(root);
  root.append(make("div", { class: "facts" }, ...DATA.facts.map(([name, value]) => make("div", { class: "fact" }, make("b", {}, value), make("span", {}, name)))));
  const values = [...DATA.inputs.map(([n, s]) => ["input", n, s]), ...DATA.outputs.map(([n, s]) => ["output", n, s])];
  root.append(make("div", { class: "halves" },
    make("div", {}, make("h2", {}, "Inputs and outputs"), table(["", "name", "shape"], values.slice(0, 40)), values.length > 40 && make("p", { class: "note" }, `and ${values.length - 40} more`)),
    make("div", {}, make("h2", {}, "Compiled"), table(["", ""], DATA.about))));
  if (DATA.gate) root.append(make("h2", {}, "Predicted against measured"), make("p", { class: "note" }, DATA.gate));
  const taken = grouped(DATA.decisions.filter((d) => d.verdict && d.ns > 0 && d.kind !== "schedule")).sort((a, b) => b.ns - a.ns).slice(0, 6);
  if (taken.length) {
    root.append(make("h2", {}, "Decisions that save most"));
    root.append(table(["decision", "where", "why", "count", "predicted to save"], taken.map((d) => [d.what, mergedPlaces(d.all), d.reason, d.all.length > 1 ? `×${d.all.length}` : "", time(d.ns)]), [3, 4]));
  }
  if (DATA.advice.length) root.append(make("h2", {}, "What only you can change"), table(["advice", "where", "would save"], DATA.advice.map((a) => [a.text, places(a.where), a.ns ? time(a.ns) : ""]), [2]));
  if (DATA.cuts.length) root.append(make("h2", {}, "Where a call leaves native code"), table(["where", "why"], DATA.cuts.map((c) => [places(c.where), c.reason])));
});

/** One chart: time of a call by kernel, by layer, by kind, or by part of a layer. */
function whereTimeGoes(root) {
  const by = { value: "kernel" };
  const groups = { kind: (k) => DATA.kinds[k.kind], layer: (k) => DATA.graph.layers[k.i] || "outside layers", part: (k) => k.part, kernel: (k) => `${k.title}\n${k.shape}` };
  const rows = () => {
    const held = new Map();
    for (const k of perCall) {
      const key = groups[by.value](k);
      const row = held.get(key) ?? { name: by.value === "kernel" ? `${k.title}  ${k.shape}` : key, kernels: [], ns: 0, kind: k.kind };
      row.kernels.push(k);
      row.ns += kernelTime(k);
      held.set(key, row);
    }
    return [...held.values()].sort((a, b) => b.ns - a.ns);
  };
  const MOST = 8;
  const plot = chart("Where the time of a call goes", (svg, width) => {
    const all = rows(), shown = all.slice(0, MOST), rest = all.slice(MOST);
    if (rest.length) shown.push({ name: `${rest.length} others`, kernels: rest.flatMap((r) => r.kernels), ns: rest.reduce((s, r) => s + r.ns, 0), kind: 7, isOne: false });
    const isNarrow = width < 560, row = isNarrow ? 44 : 27, left = isNarrow ? 8 : Math.min(400, width * 0.36), room = width - left - 150;
    const longest = Math.max(...shown.map((r) => r.ns), 1e-9);
    shown.forEach((r, i) => {
      const y = 6 + i * row, long = Math.max(2, room * r.ns / longest), many = r.kernels.length > 1 && r.isOne !== false ? ` ×${r.kernels.length}` : "";
      const figure = `${time(r.ns)} · ${percent(r.ns / allTime)}`;
      const box = draw("g", { class: "row", tabindex: "0", role: "button", "aria-label": `${r.name}${many}: ${figure}` });
      box.append(draw("rect", { class: "hit", x: 0, y, width, height: row }));
      if (isNarrow) box.append(draw("text", { x: left, y: y + 14 }, `${fitting(r.name, width - 60, 12)}${many}`), draw("rect", { class: "time", x: left, y: y + 21, width: long, height: 14, fill: `var(--b${r.kind})`, rx: 3 }), draw("text", { x: left + long + 8, y: y + 32 }, figure));
      else box.append(draw("text", { x: left - 10, y: y + 17, "text-anchor": "end" }, `${fitting(r.name, left - 50, 12)}${many}`), draw("rect", { class: "time", x: left, y: y + 4, width: long, height: row - 8, fill: `var(--b${r.kind})`, rx: 3 }), draw("text", { x: left + long + 8, y: y + 17 }, figure));
      const slowest = r.kernels.reduce((a, b) => (kernelTime(a) > kernelTime(b) ? a : b));
      tooltip(box, () => `${r.name}${many}\n${figure}\n${places(r.kernels.flatMap((k) => k.where), 3)}`);
      svg.append(pressed(box, () => find(slowest.i)));
    });
    return 12 + shown.length * row;
  });
  const csvRows = () => csv(["name", "kernels", "ns", "share"], rows().map((r) => [r.name, r.kernels.length, Math.round(r.ns), r.ns / allTime]));
  root.append(make("div", { class: "head" }, make("h2", {}, `Where the time goes (${isMeasured ? "measured" : "predicted"})`),
    choice("Time by", [["kernel", "by kernel"], ["layer", "by layer"], ["kind", "by kind"], ...(DATA.step ? [["part", "by part of a layer"]] : [])], "kernel", (v) => { by.value = v; plot.again(); }),
    exportButtons("time", { rows: csvRows, drawing: () => [plot] })), plot, kindLegend(perCall, "b"));
}

/** Equivalent decisions, such as those of equal layers, as one with their sum. */
function grouped(decisions) {
  const groups = new Map();
  for (const d of decisions) {
    const known = groups.get(d.group);
    if (!known) { groups.set(d.group, { ...d, all: [d] }); continue; }
    known.ns += d.ns;
    known.bytes += d.bytes;
    known.launches += d.launches;
    known.all.push(d);
  }
  for (const g of groups.values()) if (new Set(g.all.map((d) => d.reason)).size > 1) g.reason = `largest: ${g.all.reduce((a, b) => (Math.abs(a.ns) >= Math.abs(b.ns) ? a : b)).reason}`;
  return [...groups.values()];
}

/** Names that differ in numbers alone as one: encoder.layer.0–5. */
function mergedPlaces(decisions) {
  const names = decisions.map((d) => plainName(d.where[0] ?? "")), found = names.map((n) => n.match(/\d+/g) ?? []);
  if (names.length < 2 || found.some((n) => n.length !== found[0].length)) return places(decisions[0].where);
  let at = -1;
  return names[0].replaceAll(/\d+/g, (held) => {
    at += 1;
    const values = [...new Set(found.map((n) => Number(n[at])))].sort((a, b) => a - b);
    if (values.length === 1) return held;
    const last = values[values.length - 1];
    return `${values[0]}${last - values[0] + 1 === values.length ? "–" : "…"}${last}`;
  });
}
