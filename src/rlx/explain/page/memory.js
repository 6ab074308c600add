// Memory: every buffer of the arena as a box, from the step that writes it to the last that reads it.
view("Memory", (root) => {
  const whole = DATA.buffers.reduce((s, b) => s + b.bytes, 0), live = liveBytes();
  const peak = live.indexOf(Math.max(...live, 0));
  const kindOf = (b) => (b.kernel === null ? 7 : DATA.kernels[b.kernel].kind);
  const colour = (b) => (b.kernel === null ? "var(--given)" : `var(--c${kindOf(b)})`);
  const left = 66, top = 22;
  const plot = chart("Buffers by step and offset", (svg, width) => {
    const height = Math.max(300, Math.min(520, innerHeight - 330)), bottom = 40;
    const x = (step) => left + (width - left - 12) * (step - zoom.seen.from) / (zoom.seen.to - zoom.seen.from);
    const y = (offset) => top + (height - top - bottom) * offset / Math.max(1, DATA.arena_bytes);
    for (const v of ticks(0, Math.max(1, DATA.arena_bytes), 5)) svg.append(draw("line", { class: "axis", x1: left, x2: width - 12, y1: y(v), y2: y(v) }), draw("text", { class: "tick", x: left - 6, y: y(v) + 4, "text-anchor": "end" }, bytes(v)));
    for (const v of ticks(zoom.seen.from, zoom.seen.to, Math.max(2, width / 110))) if (Number.isInteger(v)) svg.append(draw("text", { class: "tick", x: x(v), y: height - 22, "text-anchor": "middle" }, count(v)));
    svg.append(draw("text", { class: "tick", x: (left + width) / 2, y: height - 6, "text-anchor": "middle" }, "step of the schedule"), draw("text", { class: "tick", x: 4, y: 13 }, "offset in the arena"));
    for (const b of DATA.buffers) {
      const x1 = Math.max(left, x(b.from)), x2 = Math.min(width - 12, x(Math.min(DATA.steps, b.to + 1)));
      if (x2 <= left || x1 >= width - 12) continue;
      const w = Math.max(1.5, x2 - x1), h = Math.max(1, y(b.offset + b.bytes) - y(b.offset));
      const box = draw("rect", { class: `box${w < 4 ? " thin" : ""}${b.note.includes("in place") ? " over" : ""}`, x: x1, y: y(b.offset), width: w, height: h, fill: colour(b), tabindex: "0", role: "button", "aria-label": `${b.name}, ${bytes(b.bytes)}` });
      tooltip(box, () => `${b.name}\n${bytes(b.bytes)} at offset ${count(b.offset)}\nsteps ${b.from} to ${b.to}${b.note ? `\n${b.note}` : ""}`);
      svg.append(pressed(box, () => { if (b.kernel !== null) find(b.kernel); }));
      bufferLabel(svg, b, x1, y(b.offset), w, h);
    }
    if (DATA.buffers.length) svg.append(draw("line", { class: "peak", x1: x(peak + 0.5), x2: x(peak + 0.5), y1: top - 4, y2: height - bottom }), draw("text", { class: "tick", x: Math.min(width - 120, Math.max(left + 110, x(peak + 0.5))), y: 13, "text-anchor": "middle" }, `most in use: ${bytes(live[peak] ?? 0)}`));
    return height;
  });
  const zoom = zoomable(plot, [0, Math.max(1, DATA.steps)], left, () => plot.again());
  const numbers = [["offset", "offset", "bytes"], ["from", "from step", ""], ["to", "to step", ""]];
  const columns = [
    { key: "bytes", title: "size", unit: "bytes", value: (b) => b.bytes, cell: (b) => bytes(b.bytes) },
    { key: "name", title: "buffer", value: (b) => b.name },
    ...numbers.map(([key, title, unit]) => ({ key, title, unit, value: (b) => b[key], cell: (b) => count(b[key]) })),
    { key: "maker", title: "written by", value: (b) => (b.kernel === null ? "the caller" : DATA.kernels[b.kernel].title), cell: (b) => (b.kernel === null ? "the caller" : kernelLink(DATA.kernels[b.kernel])) },
    { key: "note", title: "note", value: (b) => b.note },
  ];
  root.append(make("div", { class: "head" }, make("h2", {}, "The arena over a call"), ...zoomButtons(zoom), exportButtons("memory", { rows: () => held.csv(), drawing: () => [plot] })),
    make("p", { class: "note" }, `One block of ${bytes(DATA.arena_bytes)} holds ${plural(DATA.buffers.length, "buffer")} over ${plural(DATA.steps, "step")}: buffers whose lives do not overlap use the same bytes. Without reuse they would take ${bytes(whole)}.`),
    plot, legend([...DATA.kinds.map((name, i) => [i, name]).filter(([i]) => DATA.buffers.some((b) => b.kernel !== null && kindOf(b) === i)).map(([i, name]) => [`var(--c${i})`, `written by ${name}`]), ...(DATA.buffers.some((b) => b.kernel === null) ? [["var(--given)", "input or constant"]] : []), ...(DATA.buffers.some((b) => b.note.includes("in place")) ? [["transparent", "dashed: in place, over an operand", "dashed"]] : [])]));
  root.append(make("h2", {}, "Phases"), make("p", { class: "note" }, "The prologue runs once, when weights are set; the steady state on every call; the epilogue when step() is followed by finish()."));
  root.append(table(["phase", "kernels", "traffic", "time"], DATA.phases.filter((p) => p.kernels).map((p) => [p.name.replaceAll("_", " "), count(p.kernels), bytes(p.bytes), time(p.ns)]), [1, 2, 3]));
  root.append(make("h2", {}, "Buffers by size"));
  const held = sortedTable(root, "Buffers", columns, DATA.buffers, "bytes");
});

/** A buffer's name along the longer side of its box, where a word of it fits. */
function bufferLabel(svg, b, x, y, w, h) {
  const isUp = h > w && w >= 15, room = (isUp ? h : w) - 8, name = plainName(b.name.split(", ")[0]);
  const text = (isUp ? w : h) >= 13 ? fitting(name, room).replace(/ at…$/, "…") : "";
  if (!text) return;
  const at = isUp ? { x: 0, y: 0, transform: `translate(${x + Math.min(w / 2 + 4, 15)} ${y + h - 5}) rotate(-90)` } : { x: x + 4, y: y + Math.min(h / 2 + 4, 15) };
  svg.append(draw("text", { class: "label", ...at }, text));
}

/** Bytes that are in use at each step. */
function liveBytes() {
  const change = new Array(DATA.steps + 2).fill(0);
  for (const b of DATA.buffers) { change[b.from + (b.note.includes("in place") ? 1 : 0)] += b.bytes; change[Math.min(DATA.steps, Math.max(b.to, b.from)) + 1] -= b.bytes; }
  let now = 0;
  return change.slice(0, Math.max(1, DATA.steps)).map((c) => (now += c));
}

const zoomButtons = (zoom) => [button("+", () => zoom.zoom(1.6), { "aria-label": "Zoom in" }), button("−", () => zoom.zoom(1 / 1.6), { "aria-label": "Zoom out" }), button("◂", () => zoom.pan(-0.3), { "aria-label": "Earlier" }), button("▸", () => zoom.pan(0.3), { "aria-label": "Later" }), button("All", zoom.reset, { "aria-label": "Show all" })];
