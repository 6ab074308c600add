// Every kernel in a table, by time.
view("Kernels", (root) => {
  const wanted = { text: "", hasOnce: false };
  const fits = () => DATA.kernels.filter((k) => (wanted.hasOnce || k.phase !== "prologue") && (!wanted.text || `${k.title} ${k.op} ${k.ops.join(" ")} ${k.where.join(" ")}`.toLowerCase().includes(wanted.text)));
  const text = make("input", { type: "search", placeholder: "op or name", "aria-label": "Kernels with this text", oninput: (e) => { wanted.text = e.target.value.toLowerCase(); held.set(fits()); } });
  const once = make("label", { class: "check" }, make("input", { type: "checkbox", onchange: (e) => { wanted.hasOnce = e.target.checked; held.set(fits()); } }), "and what runs once, when weights are set");
  root.append(make("div", { class: "head" }, make("h2", {}, `Kernels by ${isMeasured ? "measured" : "predicted"} time`), text, DATA.kernels.length > perCall.length && once, exportButtons("kernels", { rows: () => held.csv() })));
  const columns = [
    ["time", isMeasured ? "measured" : "predicted", kernelTime, (k) => time(kernelTime(k)), true],
    ["share", "share of a call", shareOf, (k) => shareCell(shareOf(k)), true],
    ["title", "kernel", (k) => k.title, kernelLink, false],
    ["where", "part of", (k) => k.where.map(plainName).join(" "), (k) => places(k.where), false],
    ["shape", "result", (k) => k.shape, (k) => k.shape, false],
    ["strategy", "runs as", (k) => k.strategy, (k) => k.strategy, false],
    ...(isMeasured ? [["predicted", "predicted", (k) => k.predicted_ns, (k) => time(k.predicted_ns), true], ["roof", "of roofline", (k) => k.roofline_share ?? -1, (k) => (k.roofline_share === null ? "" : `${(100 * k.roofline_share).toFixed(0)} %`), true]] : []),
    ...(DATA.step ? [["part", "layer's part", (k) => k.part, (k) => k.part, false], ["weights", "weights", (k) => k.weight_bytes, (k) => (k.weight_bytes ? bytes(k.weight_bytes) : ""), true], ["cache", "cache", (k) => k.state_bytes, (k) => (k.state_bytes ? bytes(k.state_bytes) : ""), true], ["floor", "memory floor", (k) => (k.weight_bytes + k.state_bytes) / DATA.step.gb_s, (k) => (k.weight_bytes + k.state_bytes ? time((k.weight_bytes + k.state_bytes) / DATA.step.gb_s) : ""), true]] : []),
    ["bytes", "traffic", (k) => k.bytes, (k) => bytes(k.bytes), true],
    ["flops", "arithmetic", (k) => k.flops, (k) => (k.flops ? flops(k.flops) : ""), true],
  ];
  const held = sortedTable(root, "Kernels", columns, fits(), "time");
});
