// What charts share: drawn anew when their place changes its size; zoom and pan along time.

/** An SVG as wide as its place; `paint(svg, width)` draws it and returns the height. */
function chart(label, paint) {
  const svg = draw("svg", { class: "plot", role: "group", "aria-label": label });
  let width = 0;
  const again = () => {
    if (!svg.clientWidth) return;
    width = svg.clientWidth;
    svg.replaceChildren();
    svg.setAttribute("height", paint(svg, width));
  };
  new ResizeObserver(() => { if (svg.clientWidth !== width) again(); }).observe(svg);
  svg.again = again;
  return svg;
}

/** Round numbers that divide a range into about so many parts. */
function ticks(from, to, parts) {
  const rough = (to - from) / parts, base = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((m) => m * base).find((s) => s >= rough), found = [];
  for (let v = Math.ceil(from / step) * step; v <= to + step * 1e-9; v += step) found.push(v);
  return found;
}

const legend = (entries) => make("ul", { class: "legend" }, ...entries.map(([colour, text, shape]) => make("li", {}, make("i", { class: shape ?? null, style: `background:${colour}` }), text)));
const kindLegend = (kernels, shade = "c") => legend(DATA.kinds.map((name, i) => [i, name]).filter(([i]) => kernels.some((k) => k.kind === i)).map(([i, name]) => [`var(--${shade}${i})`, name]));

/** The longest beginning of a text that ends with a word and fits; nothing where no word fits. */
function fitting(text, room, size = 11) {
  if (widthOf(text, size) <= room) return text;
  let line = "";
  for (const word of text.split(/(?<=[\s_/.,+])/)) { if (widthOf(`${line}${word}…`, size) > room) break; line += word; }
  return line ? `${line.replace(/[\s_/.,+]+$/, "")}…` : "";
}

/** The beginning and the end of a text, as much as fits: names of the same place differ at the end. */
function fittingEnds(text, room, size = 11) {
  if (widthOf(text, size) <= room) return text;
  let most = text.length - 1;
  const cut = () => `${text.slice(0, Math.ceil(most / 3))}…${text.slice(text.length - Math.floor(2 * most / 3))}`;
  while (most > 4 && widthOf(cut(), size) > room) most -= 1;
  return cut();
}

/** Shapes with names of dims cut, and as many of the shapes as fit. */
function shortShape(shape, room) {
  const all = shape.split(/,\s*(?=\w+\[)/).map((s) => s.replaceAll(/[A-Za-z_][\w.]{6,}(?=[,\]])/g, (name) => `${name.slice(0, 4)}…`));
  let most = all.length;
  const text = () => [...all.slice(0, most), ...(most < all.length ? [`${all.length - most} more`] : [])].join(", ");
  while (most > 1 && widthOf(text(), 11) > room) most -= 1;
  return text();
}

/** Zoom and pan over a range: wheel, drag, two fingers, and keys. `changed` draws it. */
function zoomable(svg, whole, left, changed) {
  const seen = { from: whole[0], to: whole[1] };
  const limit = (from, to) => {
    const span = Math.min(whole[1] - whole[0], Math.max((whole[1] - whole[0]) / 1e5, to - from));
    seen.from = Math.max(whole[0], Math.min(from, whole[1] - span));
    seen.to = seen.from + span;
    changed();
  };
  const room = () => Math.max(1, svg.clientWidth - left - 12);
  const at = (x) => seen.from + (seen.to - seen.from) * Math.min(1, Math.max(0, (x - svg.getBoundingClientRect().left - left) / room()));
  const zoom = (by, middle = (seen.from + seen.to) / 2) => limit(middle - (middle - seen.from) / by, middle + (seen.to - middle) / by);
  const pan = (part) => { const by = part * (seen.to - seen.from); limit(seen.from + by, seen.to + by); };
  const reset = () => limit(...whole);
  svg.addEventListener("wheel", (e) => {
    if (!e.ctrlKey && !e.shiftKey && Math.abs(e.deltaX) < Math.abs(e.deltaY) && seen.from === whole[0] && seen.to === whole[1] && e.deltaY > 0) return;
    e.preventDefault();
    if (e.shiftKey || Math.abs(e.deltaX) > Math.abs(e.deltaY)) pan((e.deltaX || e.deltaY) / room());
    else zoom(Math.exp(-e.deltaY / 300), at(e.clientX));
  }, { passive: false });
  pointers(svg, (dx) => pan(-dx / room()), (by, x) => zoom(by, at(x)));
  svg.tabIndex = 0;
  svg.addEventListener("keydown", (e) => {
    const acts = { "+": () => zoom(1.5), "=": () => zoom(1.5), w: () => zoom(1.5), "-": () => zoom(1 / 1.5), s: () => zoom(1 / 1.5), ArrowLeft: () => pan(-0.15), a: () => pan(-0.15), ArrowRight: () => pan(0.15), d: () => pan(0.15), f: reset, 0: reset };
    if (!acts[e.key] || e.ctrlKey || e.metaKey) return;
    e.preventDefault();
    e.stopPropagation();
    acts[e.key]();
  });
  return { seen, zoom, pan, reset, to: limit };
}

/** Drags of one pointer, and pinches of two. */
function pointers(element, dragged, pinched) {
  const held = new Map();
  const span = () => { const [a, b] = [...held.values()]; return Math.hypot(a.x - b.x, a.y - b.y); };
  element.addEventListener("pointerdown", (e) => { held.set(e.pointerId, { x: e.clientX, y: e.clientY }); });
  addEventListener("pointermove", (e) => {
    const last = held.get(e.pointerId);
    if (!last) return;
    const before = held.size === 2 ? span() : 0, now = { x: e.clientX, y: e.clientY };
    held.set(e.pointerId, now);
    if (held.size === 1) dragged(now.x - last.x, now.y - last.y);
    else if (before) { const [a, b] = [...held.values()]; pinched(span() / before, (a.x + b.x) / 2, (a.y + b.y) / 2); }
  });
  for (const end of ["pointerup", "pointercancel"]) addEventListener(end, (e) => held.delete(e.pointerId));
}
