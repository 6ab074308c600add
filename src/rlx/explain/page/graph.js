// The kernels as a graph: a card each, coloured by kind, with the ops that were fused into it.
view("Graph", buildGraph, true);

function buildGraph(root) {
  const svg = draw("svg", { role: "group", "aria-label": "Kernels and what flows between them" });
  const world = draw("g");
  const edges = draw("g"), cards = draw("g");
  world.append(edges, cards);
  svg.append(world);
  const side = make("aside", { class: "side", "aria-live": "polite" });
  const status = make("output", {});
  const tools = make("div", { class: "tools" },
    make("button", { type: "button", onclick: () => zoom(1.3), "aria-label": "Zoom in" }, "+"),
    make("button", { type: "button", onclick: () => zoom(1 / 1.3), "aria-label": "Zoom out" }, "−"),
    make("button", { type: "button", onclick: fit }, "Fit"), status);
  const frame = make("div", { class: "view" }, tools, svg);
  root.append(frame, side);
  const place = { x: 0, y: 0, scale: 1 };
  const byKernel = [], lines = DATA.kernels.map(() => []);

  for (const [from, to] of DATA.edges) {
    const a = DATA.kernels[from], b = DATA.kernels[to];
    const x1 = a.x + a.w / 2, y1 = a.y + a.h, x2 = b.x + b.w / 2, y2 = b.y, bend = Math.max(12, (y2 - y1) / 2);
    const line = draw("path", { class: "edge", d: `M${x1} ${y1}C${x1} ${y1 + bend} ${x2} ${y2 - bend} ${x2} ${y2}` });
    edges.append(line);
    lines[from].push(line);
    lines[to].push(line);
  }
  for (const k of DATA.kernels) cards.append(byKernel[k.i] = card(k));

  function card(k) {
    const group = draw("g", { class: `node kind${k.kind}`, transform: `translate(${k.x} ${k.y})`, tabindex: "0", role: "button", "aria-label": `${k.title}: ${k.where.join(", ")}` },
      draw("rect", { width: k.w, height: k.h }), draw("text", { class: "op", x: 9, y: 17 }, k.title.slice(0, 26)));
    k.lines.forEach((text, i) => group.append(draw("text", { x: 9, y: 33 + 15 * i }, text)));
    group.addEventListener("focus", () => { if (!isSeen(k)) centre(k); });
    return pressed(group, () => choose(k.i));
  }

  function show() {
    world.setAttribute("transform", `translate(${place.x} ${place.y}) scale(${place.scale})`);
    status.textContent = `${Math.round(100 * place.scale)} %`;
  }
  function zoom(factor, x = frame.clientWidth / 2, y = frame.clientHeight / 2) {
    const scale = Math.min(3, Math.max(0.02, place.scale * factor)), by = scale / place.scale;
    place.x = x - (x - place.x) * by;
    place.y = y - (y - place.y) * by;
    place.scale = scale;
    show();
  }
  function fit() {
    const pad = 60;
    place.scale = Math.min(1.2, (frame.clientWidth - pad) / DATA.size.w, (frame.clientHeight - pad) / DATA.size.h);
    place.scale = Math.max(0.02, place.scale);
    place.x = (frame.clientWidth - DATA.size.w * place.scale) / 2;
    place.y = pad / 2 + 10;
    show();
  }
  function begin() {
    place.scale = Math.min(1, Math.max(0.7, (frame.clientWidth - 40) / DATA.size.w));
    place.x = (frame.clientWidth - DATA.size.w * place.scale) / 2;
    place.y = 56;
    show();
  }
  function isSeen(k) {
    const x = place.x + k.x * place.scale, y = place.y + k.y * place.scale;
    return x >= 0 && y >= 0 && x + k.w * place.scale <= frame.clientWidth && y + k.h * place.scale <= frame.clientHeight;
  }
  function centre(k) {
    place.scale = Math.max(place.scale, 0.6);
    place.x = frame.clientWidth / 2 - (k.x + k.w / 2) * place.scale;
    place.y = frame.clientHeight / 2 - (k.y + k.h / 2) * place.scale;
    show();
  }

  svg.addEventListener("wheel", (e) => {
    e.preventDefault();
    const box = svg.getBoundingClientRect();
    zoom(Math.exp(-e.deltaY / 400), e.clientX - box.left, e.clientY - box.top);
  }, { passive: false });
  let drag = null;
  svg.addEventListener("pointerdown", (e) => { drag = { x: e.clientX - place.x, y: e.clientY - place.y }; });
  addEventListener("pointermove", (e) => {
    if (!drag) return;
    place.x = e.clientX - drag.x;
    place.y = e.clientY - drag.y;
    show();
  });
  addEventListener("pointerup", () => { drag = null; });
  svg.addEventListener("keydown", (e) => {
    const k = DATA.kernels[chosen.kernel];
    const steps = { ArrowDown: [0, -60], ArrowUp: [0, 60], ArrowLeft: [60, 0], ArrowRight: [-60, 0] };
    if (e.key === "+" || e.key === "=") zoom(1.3);
    else if (e.key === "-") zoom(1 / 1.3);
    else if (e.key === "f") fit();
    else if (e.key === "Escape") choose(-1);
    else if (k && e.key === "n" && k.outs.length) choose(k.outs[0]);
    else if (k && e.key === "p" && k.ins.length) choose(k.ins[0]);
    else if (steps[e.key]) { place.x += steps[e.key][0]; place.y += steps[e.key][1]; show(); }
    else return;
    e.preventDefault();
  });

  chosen.listeners.push((kernel) => {
    for (const node of cards.querySelectorAll(".chosen")) node.classList.remove("chosen");
    for (const line of edges.querySelectorAll(".near")) line.classList.remove("near");
    if (kernel < 0) { side.replaceChildren(help()); return; }
    byKernel[kernel].classList.add("chosen");
    for (const line of lines[kernel]) line.classList.add("near");
    if (!isSeen(DATA.kernels[kernel])) centre(DATA.kernels[kernel]);
    details(side, DATA.kernels[kernel]);
  });
  side.append(help());
  begin();

  function help() {
    const legend = DATA.kinds.map((name, i) => make("span", {}, make("i", { style: `background:var(--c${i})` }), name));
    return make("div", {}, make("h3", {}, `${count(DATA.kernels.length)} kernels`),
      make("p", { class: "note" }, "Each card is a kernel, with the ops that were fused into it. Choose one to see what it is made of, its time and its code."),
      make("div", { class: "legend" }, ...legend),
      make("p", { class: "note" }, "Drag or use the arrows to move, the wheel or + and − to zoom, f to fit; n and p go to the next and the previous kernel; / searches."));
  }
}

/** Everything about one kernel, in the panel at the side. */
function details(side, k) {
  const rows = [["op", k.op], ["step", String(k.step)], ["phase", k.phase], ["result", k.shape], ["bytes", bytes(k.bytes)], ["arithmetic", scaled(k.flops, 1000, ["flop", "Kflop", "Mflop", "Gflop"])],
    ["predicted", time(k.predicted_ns)], ["measured", k.measured_ns === null ? "not measured" : time(k.measured_ns)]];
  if (k.measured_ns) {
    rows.push(["rate", `${(k.bytes / k.measured_ns).toFixed(1)} GB/s, ${(k.flops / k.measured_ns).toFixed(1)} GFLOP/s`]);
    if (k.roofline_share !== null) rows.push(["of the roofline", `${(100 * k.roofline_share).toFixed(0)} %`]);
  }
  for (const [name, value] of k.more) rows.push([name, value]);
  side.replaceChildren(make("h3", {}, k.title),
    make("dl", {}, ...rows.filter(([, v]) => v).flatMap(([n, v]) => [make("dt", {}, n), make("dd", {}, v)])));
  list(side, "Where", k.where);
  list(side, "Ops", k.ops);
  const related = k.decisions.map((i) => DATA.decisions[i]);
  if (related.length) {
    side.append(make("h4", {}, "Decisions"), make("ul", {}, ...related.slice(0, 12).map((d) =>
      make("li", {}, make("span", { class: d.verdict ? "yes" : "no" }, d.verdict ? "yes " : "no "), `${d.what}: ${d.reason}`))));
  }
  if (k.source !== null) {
    const text = DATA.sources[k.source];
    side.append(make("h4", {}, "Code"), make("pre", { tabindex: "0", "aria-label": "Source of the kernel" }, text));
  }
}

function list(side, title, items) {
  if (!items.length) return;
  const more = items.length > 40 ? [make("li", { class: "dim" }, `${items.length - 40} more`)] : [];
  side.append(make("h4", {}, title), make("ul", {}, ...items.slice(0, 40).map((t) => make("li", {}, t)), ...more));
}
