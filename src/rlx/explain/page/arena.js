// Memory: every buffer as a box, from the step that makes it to the last that reads it.
view("Memory", (root) => {
  root.append(make("h2", {}, "The arena"));
  root.append(make("p", { class: "note" }, `One block of ${bytes(DATA.arena_bytes)} holds ${count(DATA.buffers.length)} buffers over ${count(DATA.steps)} steps; without aliasing they would take ${bytes(DATA.buffers.reduce((s, b) => s + b.bytes, 0))}. Across is time, in steps; down is the offset.`));
  const width = 1180, height = 460, left = 74, top = 14, bottom = 30;
  const x = (step) => left + (width - left - 10) * step / Math.max(1, DATA.steps);
  const y = (offset) => top + (height - top - bottom) * offset / Math.max(1, DATA.arena_bytes);
  const svg = draw("svg", { class: "plot", viewBox: `0 0 ${width} ${height}`, role: "group", "aria-label": "Buffers by step and offset" });
  for (let i = 0; i <= 5; i += 1) {
    const at = y(DATA.arena_bytes * i / 5);
    svg.append(draw("line", { class: "axis", x1: left, x2: width - 10, y1: at, y2: at }), draw("text", { class: "tick", x: left - 6, y: at + 4, "text-anchor": "end" }, bytes(DATA.arena_bytes * i / 5)));
    const step = Math.round(DATA.steps * i / 5);
    svg.append(draw("text", { class: "tick", x: x(step), y: height - 10, "text-anchor": "middle" }, count(step)));
  }
  DATA.buffers.forEach((b, i) => {
    const box = draw("rect", { class: "box", x: x(b.from), y: y(b.offset), width: Math.max(1.5, x(Math.min(DATA.steps, b.to + 1)) - x(b.from)), height: Math.max(1, y(b.offset + b.bytes) - y(b.offset)),
      fill: `var(--c${i % 8})`, tabindex: "0", role: "button", "aria-label": b.name });
    tooltip(box, () => `${b.name}\n${bytes(b.bytes)} at ${count(b.offset)}\nsteps ${b.from} to ${b.to}${b.note ? `\n${b.note}` : ""}`);
    pressed(box, () => { if (b.kernel !== null) { open("Graph"); choose(b.kernel); } });
    svg.append(box);
  });
  root.append(svg);
  root.append(make("h2", {}, "Phases"));
  root.append(make("p", { class: "note" }, "Prologue runs when weights are set, steady state on every call, epilogue at the end of one."));
  root.append(table(["phase", "kernels", "bytes", "time"], DATA.phases.map((p) => [p.name, count(p.kernels), bytes(p.bytes), time(p.ns)]), [1, 2, 3]));
});
