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
  const by = { value: "kernel" }, MOST = 8;
  const keys = { kind: (k) => DATA.kinds[k.kind], layer: (k) => DATA.graph.layers[k.i] || "outside layers", part: (k) => k.part, kernel: (k) => k.group };
  const rows = () => alike(perCall, keys[by.value]).map((all) => ({ ...kernelGroup(all), name: by.value === "kernel" ? all[0].title : keys[by.value](all[0]), place: by.value === "kernel" ? mergedName(all) || places(all[0].where, 1).replace(/ and \d+ more$/, "") : "" })).sort((a, b) => b.ns - a.ns);
  const plot = chart("Where the time of a call goes", (svg, width) => {
    const all = rows(), shown = all.slice(0, MOST), rest = all.slice(MOST);
    if (rest.length) shown.push({ ...kernelGroup(rest.flatMap((r) => r.all)), name: `${rest.length} others`, place: "", kind: 7, isRest: true });
    const isNarrow = width < 560, left = isNarrow ? 8 : Math.min(440, width * 0.4), hasDetails = by.value === "kernel";
    const high = (hasDetails ? 34 : 22) + (isNarrow ? 22 : 5), longest = Math.max(...shown.map((r) => r.ns), 1e-9);
    const details = detailsOf(shown, isNarrow ? width - 16 : left - 22);
    shown.forEach((r, i) => {
      const y = 6 + i * high, long = Math.max(2, (width - left - 150) * r.ns / longest), many = r.all.length > 1 && !r.isRest ? ` ×${r.all.length}` : "";
      const figure = `${time(r.ns)} · ${percent(r.share)}`, full = [r.place, r.place && r.shape].filter(Boolean).join("\n");
      const box = draw("g", { class: "row", tabindex: "0", role: "button", "aria-label": `${r.name}${many}${full ? `, ${full.replace("\n", ", ")}` : ""}: ${figure}` });
      const title = { x: isNarrow ? left : left - 10, "text-anchor": isNarrow ? "start" : "end" }, at = isNarrow ? y + high - 21 : y + (high - 19) / 2;
      box.append(draw("rect", { class: "hit", x: 0, y, width, height: high }), draw("text", { ...title, y: y + 16 }, `${fitting(r.name, (isNarrow ? width - 16 : left - 18) - widthOf(many, 12), 12)}${many}`));
      if (hasDetails) box.append(draw("text", { class: "tick", ...title, y: y + 31 }, details[i]));
      box.append(draw("rect", { class: "time", x: left, y: at, width: long, height: isNarrow ? 14 : 19, fill: `var(--b${r.kind})`, rx: 3 }), draw("text", { x: left + long + 8, y: at + (isNarrow ? 11 : 14) }, figure));
      tooltip(box, () => [`${r.name}${many}`, figure, full || places(r.all.flatMap((k) => k.where), 3)].join("\n"));
      svg.append(pressed(box, () => find(r.slowest.i)));
    });
    return 12 + shown.length * high;
  });
  const csvRows = () => csv(["name", "part of", "result", "kernels", "ids", "time (ns)", "share of kernel time (%)"], rows().map((r) => [r.name, r.place, r.place && r.shape, r.all.length, r.all.map((k) => `k${k.i}`), r.ns, 100 * r.share]));
  root.append(make("div", { class: "head" }, make("h2", {}, `Where the time goes (${isMeasured ? "measured" : "predicted"}, shares of kernel time)`),
    choice("Time by", [["kernel", "by kernel"], ["layer", "by layer"], ["kind", "by kind"], ...(DATA.step ? [["part", "by part of a layer"]] : [])], "kernel", (v) => { by.value = v; plot.again(); }),
    exportButtons("time", { rows: csvRows, drawing: () => [plot] })), plot, kindLegend(perCall, "b"));
}

/** The place and the shape of each row, as far as they fit; of rows that read the same, the kernel as well. */
function detailsOf(rows, room) {
  const known = new Set(), hasPlaces = rows.some((r) => r.place);
  return rows.map((r) => {
    if (r.isRest) return plural(r.all.length, "kernel");
    if (!r.place) return hasPlaces ? r.shape : "";
    const shape = shortShape(r.shape, room * 0.55), text = `${fittingEnds(r.place, room - widthOf(` · ${shape} · k999`))} · ${shape}`, key = `${r.name} ${text}`;
    if (!known.has(key)) { known.add(key); return text; }
    return `${text} · k${r.slowest.i}`;
  });
}
