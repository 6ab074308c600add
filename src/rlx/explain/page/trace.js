// One call, and the compile: spans on tracks.
view("Trace", (root) => {
  if (!DATA.trace.length) {
    root.append(make("h2", {}, "Trace"), make("p", {}, "Nothing was timed for this report. Ask for it with --measure, or write one with rlx trace."));
    return;
  }
  for (const group of DATA.trace) {
    root.append(make("h2", {}, group.name), make("p", { class: "note" }, `${time(group.ns)} in all. Choose a span to see its kernel.`));
    const width = 1180, left = 110, row = 30, height = group.tracks.length * row + 34;
    const x = (ns) => left + (width - left - 12) * ns / Math.max(1, group.ns);
    const svg = draw("svg", { class: "plot", viewBox: `0 0 ${width} ${height}`, role: "group", "aria-label": group.name });
    for (let i = 0; i <= 6; i += 1) svg.append(draw("line", { class: "axis", x1: x(group.ns * i / 6), x2: x(group.ns * i / 6), y1: 4, y2: height - 24 }), draw("text", { class: "tick", x: x(group.ns * i / 6), y: height - 8, "text-anchor": i === 6 ? "end" : "middle" }, time(group.ns * i / 6)));
    group.tracks.forEach((track, t) => {
      svg.append(draw("text", { class: "tick", x: left - 8, y: 8 + t * row + 16, "text-anchor": "end" }, track.name));
      track.spans.forEach((s, i) => {
        const kind = s.kernel === null ? i % 8 : DATA.kernels[s.kernel].kind;
        const box = draw("rect", { class: "box", x: x(s.start), y: 8 + t * row, width: Math.max(1, x(s.start + s.ns) - x(s.start)), height: row - 6, fill: `var(--c${kind})`, tabindex: "0", role: "button", "aria-label": s.name });
        tooltip(box, () => `${s.name}\n${time(s.ns)} from ${time(s.start)}${s.parts > 1 ? `, in ${count(s.parts)} tasks` : ""}`);
        svg.append(pressed(box, () => { if (s.kernel !== null) { open("Graph"); choose(s.kernel); } }));
      });
    });
    root.append(svg);
  }
});
