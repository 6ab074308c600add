// Kernels in a table, by time; those of equal layers are one row, unless each is asked for.
view("Kernels", (root) => {
  const wanted = { text: "", hasOnce: false, isEach: false };
  const known = () => DATA.kernels.filter((k) => wanted.hasOnce || k.phase !== "prologue");
  const found = (k) => `${k.title} ${k.op} ${k.ops.join(" ")} ${k.where.join(" ")}`.toLowerCase().includes(wanted.text);
  const fits = () => {
    const of = known(), all = of.filter((k) => !wanted.text || found(k));
    status.textContent = `${count(all.length)} of ${plural(of.length, "kernel")}`;
    return (wanted.isEach ? all.map((k) => [k]) : alike(all, (k) => k.group)).map(kernelGroup);
  };
  const change = (name) => (v) => { wanted[name] = v; held.set(fits()); };
  const text = make("input", { type: "search", placeholder: "op or name", "aria-label": "Kernels with this text", oninput: (e) => change("text")(e.target.value.toLowerCase()) });
  const check = (name, label) => make("label", { class: "check" }, make("input", { type: "checkbox", onchange: (e) => change(name)(e.target.checked) }), label);
  const status = make("span", { class: "dim", role: "status" });
  root.append(make("div", { class: "head" }, make("h2", {}, `Kernels by ${isMeasured ? "measured" : "predicted"} time`), text, check("isEach", "each by itself"), DATA.kernels.length > perCall.length && check("hasOnce", "and what runs once, when weights are set"), status, exportButtons("kernels", { rows: () => held.csv() })));
  const quantity = (key, title, unit, text_) => ({ key, title, unit, value: (g) => g[key] || null, cell: (g) => (g[key] ? text_(g[key]) : "") });
  const floor = (g) => (DATA.step && g.weight_bytes + g.state_bytes ? (g.weight_bytes + g.state_bytes) / DATA.step.gb_s : null);
  const columns = [
    { key: "time", title: isMeasured ? "measured" : "predicted", unit: "ns", value: (g) => g.ns, cell: (g) => time(g.ns) },
    { key: "share", title: "share of kernel time", unit: "%", value: (g) => 100 * g.share, cell: (g) => shareCell(g.share) },
    { key: "count", title: "count", unit: "", value: (g) => g.all.length, cell: (g) => (g.all.length > 1 ? `×${count(g.all.length)}` : "") },
    { key: "title", title: "kernel", value: (g) => g.title, cell: (g) => kernelLink(g.slowest) },
    { key: "ids", title: "ids", value: (g) => g.all.map((k) => `k${k.i}`), cell: null },
    { key: "where", title: "part of", value: (g) => mergedNames(g.all), cell: (g) => mergedPlaces(g.all) },
    { key: "shape", title: "result", value: (g) => g.shape },
    { key: "strategy", title: "runs as", value: (g) => g.strategy },
    ...(isMeasured ? [quantity("predicted_ns", "predicted", "ns", time), { key: "roof", title: "of roofline", unit: "%", value: (g) => (g.roof === null ? null : 100 * g.roof), cell: (g) => (g.roof === null ? "" : `${(100 * g.roof).toFixed(0)} %`) }] : []),
    ...(DATA.step ? [{ key: "part", title: "layer's part", value: (g) => g.part }, quantity("weight_bytes", "weights", "bytes", bytes), quantity("state_bytes", "cache", "bytes", bytes),
      { key: "floor", title: "memory floor", unit: "ns", value: floor, cell: (g) => (floor(g) === null ? "" : time(floor(g))) }] : []),
    quantity("bytes", "traffic", "bytes", bytes),
    quantity("flops", "arithmetic", "FLOP", flops),
  ];
  const held = sortedTable(root, "Kernels", columns, fits(), "time");
});
