// Kernels under the limits of the machine: arithmetic for each byte across, arithmetic per second up.
view("Roofline", (root) => {
  const points = perCall.filter((k) => k.flops > 0 && k.bytes > 0 && kernelTime(k) > 0), roofs = DATA.roofs;
  const rate = (k) => k.flops / kernelTime(k), dense = (k) => k.flops / k.bytes;
  const rows = () => csv(["kernel", "id", "part of", "FLOP per byte", "GFLOP/s", "GB/s", "time (ns)"], points.map((k) => [k.title, `k${k.i}`, k.where.map(plainName), dense(k), rate(k), k.bytes / kernelTime(k), kernelTime(k)]));
  root.append(make("div", { class: "head" }, make("h2", {}, `Roofline, at ${isMeasured ? "measured" : "predicted"} times`), points.length && roofs && exportButtons("roofline", { rows, drawing: () => [plot] })));
  root.append(...[make("p", { class: "note" }, "A kernel on a slanted line moves bytes as fast as that memory does; one on the flat line computes as fast as the machine can. Below both, it could be faster. The area of a dot is its share of the time."), points.some((k) => (k.roofline_share ?? 0) > 1.05) && make("p", { class: "note" }, "Some kernels are above the limits: this machine is faster than the default rates of the target. rlx calibrate measures its own.")].filter(Boolean));
  if (!points.length || !roofs) { root.append(make("p", {}, "There is no kernel with arithmetic to show.")); return; }
  const log = Math.log10, span = (values) => [Math.floor(log(Math.min(...values))), Math.ceil(log(Math.max(...values)))];
  const [x0, x1] = span([...points.map(dense), 0.1, 100]), [y0, y1] = span([...points.map(rate), roofs.gflops * 1.2, 1]);
  const plot = chart("Roofline", (svg, width) => {
    const height = Math.max(320, Math.min(560, innerHeight - 250)), left = 58, bottom = 44, top = 22, right = 14;
    const x = (v) => left + (width - left - right) * (log(v) - x0) / (x1 - x0), y = (v) => height - bottom - (height - top - bottom) * (log(v) - y0) / (y1 - y0);
    for (let e = x0; e <= x1; e += 1) svg.append(draw("line", { class: "axis", x1: x(10 ** e), x2: x(10 ** e), y1: top, y2: height - bottom }), draw("text", { class: "tick", x: x(10 ** e), y: height - bottom + 16, "text-anchor": "middle" }, `${10 ** e}`));
    for (let e = y0; e <= y1; e += 1) svg.append(draw("line", { class: "axis", x1: left, x2: width - right, y1: y(10 ** e), y2: y(10 ** e) }), draw("text", { class: "tick", x: left - 6, y: y(10 ** e) + 4, "text-anchor": "end" }, `${10 ** e}`));
    svg.append(draw("text", { class: "tick", x: (left + width) / 2, y: height - 8, "text-anchor": "middle" }, "arithmetic intensity, FLOP per byte"), draw("text", { class: "tick", x: 4, y: 13 }, "GFLOP/s"));
    const clear = labelPlaces(roofs, x, y, [10 ** x0, 10 ** x1], 10 ** y0);
    roofs.levels.forEach(({ gb_s: speed }, i) => {
      const bend = Math.min(Math.max(roofs.gflops / speed, 10 ** x0), 10 ** x1), low = Math.max(10 ** x0, 10 ** y0 / speed);
      svg.append(draw("path", { class: `roof level${i}`, d: `M${x(low)} ${y(low * speed)}L${x(bend)} ${y(Math.min(bend * speed, roofs.gflops))}` }));
      svg.append(draw("text", { class: "roofname", x: clear[i][0], y: clear[i][1] }, clear[i][2]));
    });
    const ridge = Math.min(...roofs.levels.map((l) => roofs.gflops / l.gb_s), 10 ** x1);
    svg.append(draw("path", { class: "roof", d: `M${x(Math.max(ridge, 10 ** x0))} ${y(roofs.gflops)}L${width - right} ${y(roofs.gflops)}` }), draw("text", { class: "roofname", x: width - right, y: y(roofs.gflops) - 6, "text-anchor": "end" }, `peak ${roofs.gflops.toFixed(0)} GFLOP/s`));
    for (const k of points) {
      const dot = draw("circle", { class: "box", cx: x(dense(k)), cy: y(rate(k)), r: 3.5 + 24 * Math.sqrt(kernelTime(k) / allTime), fill: `var(--c${k.kind})`, "fill-opacity": 0.85, tabindex: "0", role: "button", "aria-label": `${k.title}, ${rate(k).toFixed(1)} GFLOP/s` });
      tooltip(dot, () => `${k.title}\n${places(k.where)}\n${time(kernelTime(k))}, ${rate(k).toFixed(1)} GFLOP/s, ${(k.bytes / kernelTime(k)).toFixed(1)} GB/s`);
      svg.append(pressed(dot, () => find(k.i)));
    }
    return height;
  });
  root.append(plot, make("h3", { class: "small" }, "Kernels"), kindLegend(points), make("h3", { class: "small" }, "Limits"),
    legend([...roofs.levels.map((l, i) => [`var(--l${i % 4})`, `${l.name}: ${l.gb_s.toFixed(0)} GB/s`, "line"]), ["var(--accent)", `peak arithmetic: ${roofs.gflops.toFixed(0)} GFLOP/s`, "line"]]));
});

/** Names of limits along their lines near the left edge, one below the other where lines are close. */
function labelPlaces(roofs, x, y, [low, high], floor) {
  return roofs.levels.map((level) => {
    const from = Math.max(low, floor / level.gb_s), at = Math.min(from * 10 ** 0.15, high);
    return [x(at) + 6, y(at * level.gb_s) + 15, level.name.split(" (")[0]];
  });
}
