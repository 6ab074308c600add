// Kernels under the limits of the machine: arithmetic for each byte across, arithmetic per second up.
view("Roofline", (root) => {
  const points = DATA.kernels.filter((k) => k.flops > 0 && k.bytes > 0 && kernelTime(k) > 0);
  const isMeasured = points.some((k) => k.measured_ns !== null);
  root.append(make("h2", {}, isMeasured ? "Kernels under the machine's limits" : "Kernels under the machine's limits, at their predicted times"));
  root.append(make("p", { class: "note" }, "A kernel on a slanted line moves bytes as fast as that memory does; one on the flat line computes as fast as the machine can. The area of a dot is its share of the time."));
  const roofs = DATA.roofs;
  if (!points.length || !roofs) { root.append(make("p", {}, "There is no kernel with arithmetic to show.")); return; }
  const width = 1180, height = 520, left = 70, bottom = 46, top = 18, right = 16;
  const rate = (k) => k.flops / kernelTime(k), dense = (k) => k.flops / k.bytes;
  const log = Math.log10, span = (values) => [Math.floor(log(Math.min(...values))), Math.ceil(log(Math.max(...values)))];
  const [x0, x1] = span([...points.map(dense), 0.1, 100]), [y0, y1] = span([...points.map(rate), roofs.gflops * 1.2, 1]);
  const x = (v) => left + (width - left - right) * (log(v) - x0) / (x1 - x0), y = (v) => height - bottom - (height - top - bottom) * (log(v) - y0) / (y1 - y0);
  const svg = draw("svg", { class: "plot", viewBox: `0 0 ${width} ${height}`, role: "group", "aria-label": "Roofline" });
  for (let e = x0; e <= x1; e += 1) svg.append(draw("line", { class: "axis", x1: x(10 ** e), x2: x(10 ** e), y1: top, y2: height - bottom }), draw("text", { class: "tick", x: x(10 ** e), y: height - bottom + 16, "text-anchor": "middle" }, `${10 ** e}`));
  for (let e = y0; e <= y1; e += 1) svg.append(draw("line", { class: "axis", x1: left, x2: width - right, y1: y(10 ** e), y2: y(10 ** e) }), draw("text", { class: "tick", x: left - 6, y: y(10 ** e) + 4, "text-anchor": "end" }, `${10 ** e}`));
  svg.append(draw("text", { class: "tick", x: width - right, y: height - 8, "text-anchor": "end" }, "flop per byte"), draw("text", { class: "tick", x: left + 6, y: top + 10 }, "GFLOP/s"));
  for (const { name, gb_s: speed } of roofs.levels) {
    const bend = Math.min(Math.max(roofs.gflops / speed, 10 ** x0), 10 ** x1), low = Math.max(10 ** x0, 10 ** y0 / speed);
    svg.append(draw("path", { class: "roof", d: `M${x(low)} ${y(low * speed)}L${x(bend)} ${y(Math.min(bend * speed, roofs.gflops))}` }));
    const at = Math.max(low, 10 ** (x0 + 0.25));
    svg.append(draw("text", { class: "roofname", x: x(at) + 8, y: y(at * speed) + 12 }, `${name} ${speed.toFixed(0)} GB/s`));
  }
  const ridge = Math.min(...roofs.levels.map((l) => roofs.gflops / l.gb_s), 10 ** x1);
  svg.append(draw("path", { class: "roof", d: `M${x(Math.max(ridge, 10 ** x0))} ${y(roofs.gflops)}L${width - right} ${y(roofs.gflops)}` }), draw("text", { class: "roofname", x: width - right, y: y(roofs.gflops) - 6, "text-anchor": "end" }, `${roofs.gflops.toFixed(0)} GFLOP/s`));
  const all = points.reduce((s, k) => s + kernelTime(k), 0);
  for (const k of points) {
    const dot = draw("circle", { class: "box", cx: x(dense(k)), cy: y(rate(k)), r: 3 + 26 * Math.sqrt(kernelTime(k) / all), fill: `var(--c${k.kind})`, "fill-opacity": 0.85, tabindex: "0", role: "button", "aria-label": k.title });
    dot.style.stroke = "var(--dim)";
    tooltip(dot, () => `${k.title}\n${short(k.where)}\n${time(kernelTime(k))}, ${rate(k).toFixed(1)} GFLOP/s, ${(k.bytes / kernelTime(k)).toFixed(1)} GB/s`);
    svg.append(pressed(dot, () => { open("Graph"); choose(k.i); }));
  }
  root.append(svg);
});
