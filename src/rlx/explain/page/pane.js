// A graph in a frame: cards, arrows with shapes, folding, zoom and pan, a selection.
const LEAST_READABLE = 0.6;
let panes = 0;
const shapesText = ({ shapes }) => [...shapes].slice(0, 2).join(", ") + (shapes.size > 2 ? ", …" : "");

/** `chosen` is called with a card that is pressed, null for none; `zoomed` where it is scaled. */
function pane(graph, chosen, zoomed) {
  const svg = draw("svg", { role: "group", "aria-label": `Graph of ${graph.name}`, tabindex: "0" });
  const id = `arrow${panes += 1}`;
  const world = draw("g", { class: "world" }), lines = draw("g"), labels = draw("g", { class: "shapes" }), cards = draw("g");
  svg.append(draw("defs", {}, draw("marker", { id, viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 8, markerHeight: 8, orient: "auto-start-reverse" }, draw("path", { class: "arrow", d: "M0 0L8 4L0 8z" }))), world);
  world.append(lines, labels, cards);
  const frame = make("div", { class: "view" }, svg);
  const all = new Set(graph.nodes.map((n) => n.layer).filter((l) => l));
  const self = { frame, svg, graph, open: new Set(), colour: "time", hasLate: false, size: { w: 1, h: 1 }, where: new Map(), home: new Map(), elements: new Map(), near: new Map(), spot: { x: 0, y: 0, scale: 1 }, chosen: "", related: [], drawn: "", hasLayers: all.size > 0 };
  if (graph.nodes.length <= 40) all.forEach((l) => self.open.add(l));

  self.draw = () => {
    const { cards: shown, edges, home } = folded(graph, self.open, self.hasLate);
    const box = { w: Math.max(200, frame.clientWidth - 40), h: Math.max(200, frame.clientHeight - 50) };
    const byKey = new Map(shown.map((c) => [c.key, c]));
    for (const c of shown) c.beside = 0;
    for (const e of edges) { const from = byKey.get(e.from); if (from.sort !== "input") from.beside = Math.max(from.beside, 10 + widthOf(shapesText(e), 10.5)); }
    self.home = home;
    self.size = laidOut(shown, edges.map((e) => [e.from, e.to, e.isStub]), box);
    self.where = new Map(shown.map((c) => [c.key, c]));
    self.elements = new Map(shown.map((c) => [c.key, element(c)]));
    self.near = new Map(shown.map((c) => [c.key, { lines: [], above: [], below: [] }]));
    cards.replaceChildren(...self.elements.values());
    lines.replaceChildren();
    labels.replaceChildren();
    const labelled = new Set();
    for (const e of edges) if (!e.isStub) edge(e, labelled);
    for (const c of shown) stubs(c);
  };

  /** Short arrows of values that many read, with their names. */
  function stubs(c) {
    if (c.readers) labels.append(draw("text", { x: c.x + c.w / 2 - 7, y: c.y + c.h + 14, "text-anchor": "end" }, `read by ${count(c.readers)}`));
    if (!c.stubs.length) return;
    const line = draw("path", { class: "edge", d: `M${c.x + PAD} ${c.y - c.top - 2}V${c.y}`, "marker-end": `url(#${id})` });
    const from = (e) => self.where.get(e.from);
    lines.append(line);
    c.stubLines.forEach((text, i) => {
      const name = draw("text", { class: "stub", x: c.x + PAD + 6, y: c.y - c.top + 8 + STUB * i }, text), makers = i < c.stubs.length && !(i === MOST_STUBS - 1 && c.stubs.length > MOST_STUBS) ? [c.stubs[i]] : c.stubs.slice(i);
      tooltip(name, () => makers.map((e) => `${[...e.shapes].join(", ")}\n${from(e).title} → ${c.title}`).join("\n"));
      if (makers.length === 1) name.addEventListener("click", () => { self.centre(makers[0].from); chosen(from(makers[0])); });
      labels.append(name);
    });
    tooltip(line, () => c.stubs.map((e) => `${from(e).title} → ${c.title}`).join("\n"));
    for (const e of c.stubs) meet(e, line);
  }

  function meet({ from, to }, line) {
    for (const key of [from, to]) self.near.get(key).lines.push(line);
    self.near.get(from).below.push(to);
    self.near.get(to).above.push(from);
  }

  function edge({ from, to, shapes }, labelled) {
    const line = draw("path", { class: "edge", d: self.size.routes.get(`${from} ${to}`) ?? "", "marker-end": `url(#${id})` });
    const a = self.where.get(from), text = shapesText({ shapes });
    lines.append(line);
    if (!labelled.has(`${from} ${text}`) && a.sort !== "input") {
      const row = [...labelled].filter((l) => l.startsWith(`${from} `)).length;
      if (row < 2) labels.append(draw("text", { x: a.x + a.w / 2 + 7, y: a.y + a.h + 14 + 12 * row }, text));
      labelled.add(`${from} ${text}`);
    }
    tooltip(line, () => `${[...shapes].join("\n")}\n${a.title} → ${self.where.get(to).title}`);
    meet({ from, to }, line);
  }

  function element(c) {
    const group = draw("g", { class: `node ${c.sort}`, transform: `translate(${c.x} ${c.y})`, tabindex: "0", role: "button", "aria-label": c.label, "data-key": c.key }, draw("rect", { width: c.w, height: c.h, rx: c.sort === "card" || c.sort === "layer" ? 6 : 14 }));
    if (c.sort === "layer") group.append(draw("rect", { class: "behind", x: 5, y: -5, width: c.w, height: c.h, rx: 6 })), group.prepend(group.lastChild);
    c.head.forEach((text, i) => group.append(draw("text", { class: "op", x: PAD, y: 18 + LINE * i }, text)));
    c.rest.forEach((text, i) => group.append(draw("text", { x: PAD, y: 18 + LINE * (c.head.length + i) }, text)));
    paint(group, c);
    group.addEventListener("focus", () => { if (group.matches(":focus-visible") && !isSeen(c)) self.centre(c.key); });
    return pressed(group, () => (c.sort === "layer" ? self.unfold(c.layer) : chosen(c)));
  }

  function paint(group, c) {
    const isEnd = c.sort === "input" || c.sort === "output";
    group.style.setProperty("--fill", isEnd ? "var(--back)" : self.colour === "kind" ? `var(--c${c.kind})` : graph.hasTimes ? `var(--h${heat(c.share)})` : "var(--panel)");
  }
  self.paint = () => { for (const [key, e] of self.elements) paint(e, self.where.get(key)); };

  self.unfold = (layer) => { self.open.add(layer); again(graph.nodes.find((n) => n.layer === layer)?.key); };
  self.fold = (layer) => { self.open.delete(layer); again(`layer ${layer}`); };
  self.foldAll = (isFolded) => { self.open = isFolded ? new Set() : new Set(all); self.draw(); self.mark(self.chosen); self.fit(); };
  const again = (key) => { self.draw(); self.mark(self.chosen); if (key) { self.centre(key); self.elements.get(key)?.focus({ preventScroll: true }); } };

  self.show = () => {
    const { x, y, scale } = self.spot;
    world.setAttribute("transform", `translate(${x} ${y}) scale(${scale})`);
    svg.classList.toggle("far", scale < 0.45);
    zoomed();
  };
  self.zoom = (by, x = frame.clientWidth / 2, y = frame.clientHeight / 2) => {
    const scale = Math.min(3, Math.max(0.02, self.spot.scale * by)), k = scale / self.spot.scale;
    self.spot = { x: x - (x - self.spot.x) * k, y: y - (y - self.spot.y) * k, scale };
    self.show();
  };
  self.fit = () => {
    const scale = Math.max(0.02, Math.min(1.2, (frame.clientWidth - 30) / self.size.w, (frame.clientHeight - 50) / self.size.h));
    self.spot = { x: (frame.clientWidth - self.size.w * scale) / 2, y: Math.max(25, (frame.clientHeight - self.size.h * scale) / 3), scale };
    self.show();
  };
  function isSeen(c) {
    const { x, y, scale } = self.spot, left = x + c.x * scale, top = y + c.y * scale;
    return left >= 0 && top >= 0 && left + c.w * scale <= frame.clientWidth && top + c.h * scale <= frame.clientHeight;
  }
  /** Bring a card into the middle, large enough to be read. */
  self.centre = (key, least = 0.8) => {
    const c = self.where.get(self.home.get(key) ?? key);
    if (!c) return;
    const scale = Math.max(self.spot.scale, least);
    self.spot = { x: frame.clientWidth / 2 - (c.x + c.w / 2) * scale, y: frame.clientHeight / 2 - (c.y + c.h / 2) * scale, scale };
    self.show();
  };
  /** Mark a node as chosen; its layer is unfolded, and it is brought into sight. */
  self.choose = (key) => {
    const node = graph.nodes.find((n) => n.key === key);
    if (node?.late && !self.hasLate) self.hasLate = true;
    if (node && (!self.where.has(key))) { if (node.layer) self.open.add(node.layer); self.draw(); }
    self.mark(key);
    if (node && frame.clientWidth) self.centre(key, 1);
  };
  self.mark = (key) => {
    self.chosen = key;
    for (const e of [...cards.querySelectorAll(".chosen"), ...lines.querySelectorAll(".near")]) e.classList.remove("chosen", "near");
    self.elements.get(key)?.classList.add("chosen");
    for (const line of self.near.get(key)?.lines ?? []) line.classList.add("near");
  };
  self.relate = (keys) => {
    self.related = keys;
    for (const e of cards.querySelectorAll(".related")) e.classList.remove("related");
    for (const key of keys) self.elements.get(self.home.get(key))?.classList.add("related");
    const homes = keys.map((key) => self.where.get(self.home.get(key))).filter(Boolean);
    if (homes.length && frame.clientWidth && !homes.some(isSeen)) self.centre(homes[0].key);
  };
  /** All of it; where that could not be read, the top of it at a size that can. */
  self.begin = () => {
    self.drawn = `${frame.clientWidth} ${frame.clientHeight}`;
    self.draw();
    self.fit();
    if (self.spot.scale >= LEAST_READABLE || !frame.clientWidth) return;
    const scale = 0.8, first = [...self.where.values()].reduce((a, b) => (b.y < a.y || (b.y === a.y && b.x < a.x) ? b : a));
    const isSeenAtLeft = (first.x + first.w) * scale + 12 <= frame.clientWidth;
    self.spot = { x: isSeenAtLeft ? Math.max(12, (frame.clientWidth - self.size.w * scale) / 2) : frame.clientWidth / 2 - (first.x + first.w / 2) * scale, y: 25, scale };
    self.show();
  };

  svg.addEventListener("wheel", (e) => {
    e.preventDefault();
    const box = svg.getBoundingClientRect();
    self.zoom(Math.exp(-e.deltaY / 400), e.clientX - box.left, e.clientY - box.top);
  }, { passive: false });
  let moved = 0;
  svg.addEventListener("pointerdown", () => { moved = 0; }, true);
  svg.addEventListener("click", (e) => { if (moved > 6) { e.stopPropagation(); e.preventDefault(); } }, true);
  pointers(svg, (dx, dy) => { moved += Math.abs(dx) + Math.abs(dy); self.spot.x += dx; self.spot.y += dy; self.show(); },
    (by, x, y) => { moved = 9; const box = svg.getBoundingClientRect(); self.zoom(by, x - box.left, y - box.top); });
  svg.addEventListener("keydown", (e) => {
    const near = self.near.get(e.target.dataset?.key ?? self.chosen) ?? self.near.get(self.chosen);
    const step = (dx, dy) => { self.spot.x += dx; self.spot.y += dy; self.show(); };
    const focus = (keys) => { const to = self.elements.get(keys?.[0]); if (to) { to.focus(); if (!isSeen(self.where.get(keys[0]))) self.centre(keys[0]); } };
    const acts = { ArrowDown: () => step(0, -60), ArrowUp: () => step(0, 60), ArrowLeft: () => step(60, 0), ArrowRight: () => step(-60, 0), "+": () => self.zoom(1.3), "=": () => self.zoom(1.3), "-": () => self.zoom(1 / 1.3), f: self.fit, Escape: () => chosen(null), n: () => focus(near?.below), p: () => focus(near?.above) };
    if (!acts[e.key] || e.ctrlKey || e.metaKey) return;
    e.preventDefault();
    acts[e.key]();
  });
  new ResizeObserver(() => {
    if (!frame.clientWidth || !self.elements.size || self.drawn === `${frame.clientWidth} ${frame.clientHeight}`) return;
    self.begin();
    self.mark(self.chosen);
    self.relate(self.related);
    if (self.chosen) self.centre(self.chosen, 1);
  }).observe(frame);
  return self;
}
