// The compiled graph, the model as it was given, or both beside each other.
view("Graph", (root) => {
  const side = make("aside", { class: "side", "aria-label": "Details", tabindex: "0" });
  const host = make("div", { class: "panes" });
  const compiled = pane(compiledGraph(), (c) => (c === null ? choose(-1) : c.kernel !== undefined && choose(c.kernel)));
  let original = null;
  const mode = { value: "compiled" };
  const first = () => (mode.value === "original" ? source() : compiled);
  const source = () => (original ??= pane(sourceGraph(), (c) => (c === null ? chooseNode(-1) : c.node !== undefined && chooseNode(c.node))));
  const both = (act) => { for (const p of shownPanes()) act(p); };
  const shownPanes = () => ({ compiled: [compiled], original: [source()], both: [source(), compiled] })[mode.value];

  const late = make("label", { class: "check" }, make("input", { type: "checkbox", onchange: (e) => { compiled.hasLate = e.target.checked; compiled.draw(); compiled.fit(); } }), "weight preparation");
  const tools = make("div", { class: "tools" },
    choice("Which graph", [["compiled", "Compiled"], ["original", "Original"], ["both", "Side by side"]], "compiled", (v) => { mode.value = v; arrange(); }),
    choice("Colour", [["time", "by time"], ["kind", "by kind"]], "time", (v) => { compiled.colour = v; compiled.paint(); help(); }),
    button("Fold", () => both((p) => p.foldAll(true)), { title: "Fold all layers" }), button("Unfold", () => both((p) => p.foldAll(false)), { title: "Unfold all layers" }),
    ...compiled.tools(), DATA.kernels.some((k) => k.phase === "prologue") && late,
    exportButtons("graph", { drawing: () => { const p = first(); return [p.svg, { x: -20, y: -20, w: p.size.w + 40, h: p.size.h + 60 }]; } }));
  root.append(make("div", { class: "stage" }, tools, host), side);

  function arrange() {
    const now = shownPanes();
    host.replaceChildren(...now.map((p) => make("figure", { class: "pane" }, mode.value === "both" && make("figcaption", {}, p === compiled ? "Compiled: kernels" : "Original: ops of the model"), p.frame)));
    for (const p of now) p.begin();
    marked();
  }
  function marked() {
    const k = DATA.kernels[state.kernel], n = DATA.model.nodes[state.node];
    compiled.choose(k ? `k${k.i}` : "");
    if (mode.value !== "compiled") {
      source().choose(n ? `n${state.node}` : "");
      source().relate(k ? nodesOf(k).map((i) => `n${i}`) : []);
    }
    compiled.relate(n ? kernelsOf(n).map((m) => `k${m.i}`) : []);
    side.classList.remove("idle");
    if (k) details(side, k); else if (n) nodeDetails(side, state.node); else help();
    const chosen = k ?? n;
    if (chosen && (k ? compiled : source()).graph) foldButton(k ? compiled : source(), k ? DATA.graph.layers[k.i] : n.layer);
    side.scrollTop = 0;
  }
  function foldButton(p, layer) {
    if (layer) side.querySelector("h3")?.after(make("p", { class: "note" }, `in ${layerName(p.graph, layer)} `, button("Fold this layer", () => p.fold(layer))));
  }
  function help() {
    if (state.kernel >= 0 || state.node >= 0) return;
    const heats = HEATS.map((text, i) => [`var(--h${i})`, text]);
    side.classList.add("idle");
    side.replaceChildren(make("h3", {}, `${plural(perCall.length, "kernel")} per call, ${plural(DATA.model.nodes.length, "op")} in the model`),
      make("p", { class: "note" }, `A card is a kernel with the ops fused into it, or a layer that is folded; an arrow is a value, with its shape. Colour: ${compiled.colour === "time" ? `share of the ${isMeasured ? "measured" : "predicted"} time` : "kind of kernel"}.`),
      compiled.colour === "time" ? legend(heats) : kindLegend(DATA.kernels),
      make("p", { class: "note" }, "Press a layer to unfold it, a kernel to see its time, decisions and IR. Drag or arrow keys move, wheel or + and − zoom, f fits, n and p go to what reads a value and what makes it, / searches."));
  }
  listeners.kernel.push(() => { if (!root.hidden) marked(); });
  listeners.node.push((node) => { if (node >= 0 && mode.value === "compiled") { mode.value = "both"; tools.querySelector("select").value = "both"; arrange(); } else if (!root.hidden) marked(); });
  root.panes = () => ({ compiled, original: source(), mode, arrange });
  arrange();
  if (state.node >= 0) { mode.value = "both"; tools.querySelector("select").value = "both"; arrange(); }
}, true);
