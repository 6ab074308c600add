// One call, and the compile: spans on tracks, one for each thread.
view("Trace", (root) => {
  if (!DATA.trace.length) {
    root.append(make("h2", {}, "Trace"), make("p", {}, "Nothing was timed for this report. rlx explain --html times kernels where the target runs on this machine; rlx trace writes a file for Perfetto."));
    return;
  }
  for (const group of [...DATA.trace].reverse()) track(root, group);
});

function track(root, group) {
  const left = Math.ceil(18 + Math.max(...group.tracks.map((t) => widthOf(t.name, 11)))), row = 34, top = 26;
  const spans = group.tracks.flatMap((t) => t.spans);
  const colour = (s, i) => (s.kernel === null ? `var(--c${i % 8})` : `var(--c${DATA.kernels[s.kernel].kind})`);
  const plot = chart(group.name, (svg, width) => {
    const { from, to } = zoom.seen, height = top + group.tracks.length * row + 8;
    const x = (ns) => left + (width - left - 12) * (ns - from) / (to - from);
    for (const v of ticks(from, to, Math.max(2, width / 120))) svg.append(draw("line", { class: "axis", x1: x(v), x2: x(v), y1: top - 6, y2: height }), draw("text", { class: "tick", x: Math.min(x(v), width - 34), y: 14, "text-anchor": "middle" }, time(v)));
    group.tracks.forEach((t, n) => {
      svg.append(draw("text", { class: "tick", x: left - 8, y: top + n * row + 18, "text-anchor": "end" }, t.name));
      t.spans.forEach((s, i) => span(svg, s, colour(s, i), x, width, top + n * row));
    });
    return height;
  });
  function span(svg, s, fill, x, width, y) {
    const x1 = Math.max(left, x(s.start)), x2 = Math.min(width - 12, x(s.start + s.ns));
    if (x2 < left || x1 > width - 12) return;
    const w = Math.max(1, x2 - x1), label = w > 24 ? fitting(s.kernel === null ? s.name : DATA.kernels[s.kernel].title, w - 8) : "";
    const box = draw("rect", { class: w < 4 ? "box thin" : "box", x: x1, y, width: w, height: row - 8, fill, rx: 2, tabindex: "0", role: "button", "aria-label": `${s.name}, ${time(s.ns)}` });
    tooltip(box, () => `${s.kernel === null ? s.name : `${DATA.kernels[s.kernel].title}\n${plainName(s.name)}`}\n${time(s.ns)} from ${time(s.start)}${s.parts > 1 ? `, ${plural(s.parts, "task")}` : ""}`);
    svg.append(pressed(box, () => { if (s.kernel !== null) find(s.kernel); }));
    if (label) svg.append(draw("text", { class: "label", x: x1 + 4, y: y + 17 }, label));
  }
  const zoom = zoomable(plot, [0, Math.max(1, group.ns)], left, () => plot.again());
  plot.zoom = zoom;
  const rows = () => csv(["track", "span", "start (ns)", "duration (ns)", "tasks"], group.tracks.flatMap((t) => t.spans.map((s) => [t.name, s.name, s.start, s.ns, s.parts])));
  const note = group.name === "Calls" ? `In a build with timers around each kernel; a call of the program itself takes ${DATA.call.ns ? time(DATA.call.ns) : "less"}. ` : "";
  root.append(make("div", { class: "head" }, make("h2", {}, group.name), ...zoomButtons(zoom), exportButtons(group.name.toLowerCase(), { rows, drawing: () => [plot] })),
    make("p", { class: "note" }, `${time(group.ns)} in all. ${note}Wheel or + and − zoom, drag or arrow keys pan; press a span for its kernel.`), plot);
  const kinds = spans.filter((s) => s.kernel !== null).map((s) => DATA.kernels[s.kernel]);
  if (kinds.length) root.append(kindLegend(kinds));
}
