// Kernels under the limits of the machine: arithmetic for each byte across, arithmetic per second up.
view("Roofline", (root) => {
  const points = perCall.filter((k) => k.flops > 0 && k.bytes > 0 && kernelTime(k) > 0), roofs = DATA.roofs;
  const rate = (k) => k.flops / kernelTime(k), dense = (k) => k.flops / k.bytes;
  const rows = () => csv(["kernel", "id", "part of", "FLOP per byte", "GFLOP/s", "GB/s", "time (ns)"], points.map((k) => [k.title, `k${k.i}`, k.where.map(plainName), dense(k), rate(k), k.bytes / kernelTime(k), kernelTime(k)]));
  root.append(make("div", { class: "head" }, make("h2", {}, `Roofline, at ${isMeasured ? "measured" : "predicted"} times`), points.length && roofs && exportButtons("roofline", { rows, drawing: () => [plot] })));
  const peakOf = (k) => roofs?.peaks[k.arithmetic], beyond = points.filter((k) => !peakOf(k)), isFaster = points.some((k) => peakOf(k) && (k.roofline_share ?? 0) > 1.05);
  const beyondNames = [...new Set(beyond.map((k) => k.arithmetic))].join(", ");
  const notes = ["A kernel on a slanted line moves bytes as fast as that memory does; one on the flat line of its dtype computes as fast as the machine can. Below both, it could be faster. The area of a dot is its share of kernel time.",
    beyond.length && `The target states no peak for arithmetic in ${beyondNames}: dots with a dashed outline have none, and may be above the others'.`,
    isFaster && "Some kernels are above the limits: this machine is faster than the default rates of the target. rlx calibrate measures its own."];
  root.append(...notes.filter(Boolean).map((text) => make("p", { class: "note" }, text)));
  if (!points.length || !roofs) { root.append(make("p", {}, "There is no kernel with arithmetic to show.")); return; }
  const log = Math.log10, span = (values) => [Math.floor(log(Math.min(...values))), Math.ceil(log(Math.max(...values)))];
  const peaks = [...Map.groupBy(Object.entries(roofs.peaks).filter(([dtype]) => dtype === roofs.dtype || points.some((k) => k.arithmetic === dtype)), ([, v]) => v)].map(([v, of]) => [of.map(([dtype]) => dtype).join(", "), v]);
  const highest = Math.max(...peaks.map(([, v]) => v));
  const [x0, x1] = span([...points.map(dense), 0.1, 100]), [y0, y1] = span([...points.map(rate), highest * 1.2, 1]);
  const plot = chart("Roofline", (svg, width) => {
    const height = Math.max(320, Math.min(560, innerHeight - 250)), left = 58, bottom = 44, top = 22, right = 14;
    const x = (v) => left + (width - left - right) * (log(v) - x0) / (x1 - x0), y = (v) => height - bottom - (height - top - bottom) * (log(v) - y0) / (y1 - y0);
    for (let e = x0; e <= x1; e += 1) svg.append(draw("line", { class: "axis", x1: x(10 ** e), x2: x(10 ** e), y1: top, y2: height - bottom }), draw("text", { class: "tick", x: x(10 ** e), y: height - bottom + 16, "text-anchor": "middle" }, `${10 ** e}`));
    for (let e = y0; e <= y1; e += 1) svg.append(draw("line", { class: "axis", x1: left, x2: width - right, y1: y(10 ** e), y2: y(10 ** e) }), draw("text", { class: "tick", x: left - 6, y: y(10 ** e) + 4, "text-anchor": "end" }, `${10 ** e}`));
    svg.append(draw("text", { class: "tick", x: (left + width) / 2, y: height - 8, "text-anchor": "middle" }, "arithmetic intensity, FLOP per byte"), draw("text", { class: "tick", x: 4, y: 13 }, "GFLOP/s"));
    const lines = [...roofs.levels.map(({ name, gb_s: speed }, i) => {
      const bend = Math.min(Math.max(highest / speed, 10 ** x0), 10 ** x1), low = Math.max(10 ** x0, 10 ** y0 / speed);
      return { name: name.split(" (")[0], class: `roof level${i % 4}`, from: [x(low), y(low * speed)], to: [x(bend), y(Math.min(bend * speed, highest))] };
    }), ...peaks.map(([dtypes, rate_]) => {
      const ridge = Math.max(Math.min(...roofs.levels.map((l) => rate_ / l.gb_s), 10 ** x1), 10 ** x0);
      return { name: `${dtypes} peak ${rate_.toFixed(0)} GFLOP/s`, class: "roof", from: [width - right, y(rate_)], to: [x(ridge), y(rate_)], names: [left, y(rate_)] };
    })];
    for (const l of lines) svg.append(draw("path", { class: l.class, d: `M${l.from.join(" ")}L${l.to.join(" ")}` }));
    const size = (k) => 3.5 + 24 * Math.sqrt(kernelTime(k) / allTime);
    for (const k of points) {
      const dot = draw("circle", { class: peakOf(k) ? "box" : "box over", cx: x(dense(k)), cy: y(rate(k)), r: size(k), fill: `var(--c${k.kind})`, "fill-opacity": 0.85, tabindex: "0", role: "button", "aria-label": `${k.title}, ${rate(k).toFixed(1)} GFLOP/s` });
      tooltip(dot, () => `${k.title}\n${places(k.where)}\n${time(kernelTime(k))}, ${rate(k).toFixed(1)} GFLOP/s, ${(k.bytes / kernelTime(k)).toFixed(1)} GB/s\narithmetic in ${k.arithmetic}: ${peakOf(k) ? `peak ${peakOf(k).toFixed(0)} GFLOP/s` : "no peak is stated"}`);
      svg.append(pressed(dot, () => find(k.i)));
    }
    const taken = [...points.map((k) => [x(dense(k)), y(rate(k)), size(k)]), ...[left, width - right].map((edge) => [edge, -1e6, 0])];
    for (const l of lines) svg.append(nameAlong(l, [...taken, ...lines.filter((o) => o !== l).flatMap(spaced)], taken, [left, width - right]));
    return height;
  });
  root.append(plot, make("h3", { class: "small" }, "Kernels"), kindLegend(points), make("h3", { class: "small" }, "Limits"),
    legend([...roofs.levels.map((l, i) => [`var(--l${i % 4})`, `${l.name}: ${l.gb_s.toFixed(0)} GB/s`, "line"]), ...peaks.map(([dtypes, v]) => ["var(--accent)", `peak arithmetic in ${dtypes}: ${v.toFixed(0)} GFLOP/s`, "line"]), ...(beyond.length ? [["transparent", `dashed outline: arithmetic in ${beyondNames}, no peak stated`, "dashed"]] : [])]));
});

/** Points of a line, close enough that no name is between them. */
function spaced({ from: [x1, y1], to: [x2, y2] }) {
  const n = Math.ceil(Math.hypot(x2 - x1, y2 - y1) / 6);
  return Array.from({ length: n + 1 }, (_, i) => [x1 + (x2 - x1) * i / n, y1 + (y2 - y1) * i / n, 0]);
}

/** The name of a limit along its line or as far as `names`, above or below, where it is clear of what is drawn: circles of
 * [x, y, radius]. The place that it takes is added to `taken`. */
function nameAlong({ name, from: [x1, y1], to, names: [x2, y2] = to }, drawn, taken, [left, right]) {
  const long = Math.hypot(x2 - x1, y2 - y1), wide = widthOf(name, 11) + 8, ux = (x2 - x1) / long, uy = (y2 - y1) / long, isBack = ux < 0;
  const along = (at, side) => Array.from({ length: Math.ceil(wide / 5) + 1 }, (_, i) => at + wide * i / Math.ceil(wide / 5)).map((t) => [x1 + ux * t + side * 9 * uy * (isBack ? -1 : 1), y1 + uy * t - side * 9 * Math.abs(ux)]);
  let best = null;
  for (const side of [1, -1]) for (let at = 2; (!best || best.clear < 7) && at <= Math.max(2, long - wide); at += 6) {
    const points = along(at, side), isInside = points.every(([x]) => x >= left && x <= right);
    const clear = isInside ? Math.min(...points.map(([x, y]) => Math.min(...drawn.map(([cx, cy, r]) => Math.hypot(x - cx, y - cy) - r)))) : -1e6;
    if (!best || clear > best.clear) best = { clear, points };
  }
  taken.push(...best.points.map(([x, y]) => [x, y, 7]));
  const [x, y] = best.points[0].map((v, i) => (v + best.points[best.points.length - 1][i]) / 2), angle = Math.atan2(uy, ux) * 180 / Math.PI + (isBack ? 180 : 0);
  return draw("text", { class: "roofname", "text-anchor": "middle", "dominant-baseline": "central", transform: `translate(${x} ${y}) rotate(${angle})` }, name);
}
