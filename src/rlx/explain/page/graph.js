// The compiled graph, the model as it was given, or both beside each other.
view("Graph", (root) => {
  const side = make("aside", { class: "side", "aria-label": "Details", tabindex: "0" });
  const host = make("div", { class: "panes" });
  const press = (c) => { if (c === null) go(selected({})); else if (c.kernel !== undefined) choose(c.kernel); else if (c.node !== undefined) chooseNode(c.node); else chooseValue(c.key); };
  const compiled = pane(compiledGraph(), press, () => scales());
  let original = null, drawn = "", marks = "";
  const source = () => (original ??= pane(sourceGraph(), press, () => scales()));
  const shownPanes = () => ({ compiled: [compiled], original: [source()], both: [source(), compiled] })[state.graph];
  const each = (act) => () => { for (const p of shownPanes()) act(p); };
  /** Ops of the model have no times. */
  const colour = () => (state.graph === "original" ? "kind" : state.colour);
  const tools = toolbar();
  root.append(make("div", { class: "stage" }, tools.element, host), side);

  function toolbar() {
    const which = choice("Which graph", [["compiled", "Compiled"], ["original", "Original"], ["both", "Side by side"]], state.graph, (graph) => go({ graph }));
    const paints = choice("Colour", [["time", "by time"], ["kind", "by kind"]], state.colour, (v) => go({ colour: v }));
    const late = make("input", { type: "checkbox", onchange: (e) => { compiled.hasLate = e.target.checked; compiled.draw(); compiled.mark(compiled.chosen); compiled.fit(); } });
    const folds = [["Fold", true], ["Unfold", false]].map(([text, isFolded]) => button(text, each((p) => p.foldAll(isFolded)), { title: `${text} all layers` }));
    const scale = make("output", { class: "zoom", "aria-label": "Scale" }), saves = make("span", { class: "exports" });
    return {
      which, paints, late, folds, scale, saves,
      element: make("div", { class: "tools" }, which, paints, ...folds,
        button("+", each((p) => p.zoom(1.3)), { "aria-label": "Zoom in" }), button("−", each((p) => p.zoom(1 / 1.3)), { "aria-label": "Zoom out" }), button("Fit", each((p) => p.fit())), scale,
        DATA.kernels.some((k) => k.phase === "prologue") && make("label", { class: "check" }, late, "weight preparation"), saves),
    };
  }
  /** The tools as they apply to the panes that are shown. */
  function equip() {
    const isOriginal = state.graph === "original";
    tools.which.value = state.graph;
    tools.paints.value = colour();
    tools.paints.disabled = tools.late.disabled = isOriginal;
    tools.paints.title = isOriginal ? "Ops of the model have no times" : "";
    tools.late.checked = compiled.hasLate && !isOriginal;
    for (const b of tools.folds) b.disabled = shownPanes().every((p) => !p.hasLayers);
    scales();
  }
  function scales() { tools.scale.textContent = shownPanes().map((p) => `${Math.round(100 * p.spot.scale)} %`).join(" · "); }
  const saving = (p) => exportButtons(p.graph.name, { drawing: () => [p.svg, { x: -20, y: -20, w: p.size.w + 40, h: p.size.h + 60 }] });

  function arrange() {
    const now = shownPanes(), isBoth = now.length > 1;
    drawn = state.graph;
    host.replaceChildren(...now.map((p) => make("figure", { class: "pane" }, isBoth && make("figcaption", {}, p === compiled ? "Compiled: kernels" : "Original: ops of the model", saving(p)), p.frame)));
    tools.saves.replaceChildren(...(isBoth ? [] : [saving(now[0])]));
    for (const p of now) { p.colour = colour(); p.begin(); }
    marked();
  }
  function marked() {
    const k = DATA.kernels[state.kernel], n = DATA.model.nodes[state.node], own = shownPanes();
    marks = `${state.kernel} ${state.node} ${state.value}`;
    if (own.includes(compiled)) {
      compiled.choose(k ? `k${k.i}` : state.value);
      compiled.relate(n ? kernelsOf(n).map((m) => `k${m.i}`) : []);
    }
    if (own.includes(original)) {
      original.choose(n ? `n${state.node}` : state.value);
      original.relate(k ? nodesOf(k).map((i) => `n${i}`) : []);
    }
    side.classList.remove("idle");
    if (k) details(side, k); else if (n) nodeDetails(side, state.node); else if (state.value) valueDetails(side, state.value); else help();
    const of = k ? compiled : n && original;
    if (of && own.includes(of)) foldButton(of, k ? DATA.graph.layers[k.i] : n.layer);
    side.scrollTop = 0;
    equip();
  }
  function foldButton(p, layer) {
    if (layer) side.querySelector("h3")?.after(make("p", { class: "note" }, `in ${layerName(p.graph, layer)} `, button("Fold this layer", () => p.fold(layer))));
  }
  function help() {
    const cards = {
      compiled: "A card is a kernel with the ops fused into it, or a layer that is folded; an arrow is a value, with its shape.",
      original: "A card is an op of the model as it was given, or a layer that is folded; an arrow is a value, with its shape.",
      both: "Ops of the model as it was given beside the kernels that they became: a kernel that is chosen marks its ops, an op its kernels.",
    }[state.graph];
    const isByTime = colour() === "time", share = `share of the ${isMeasured ? "measured" : "predicted"} kernel time`;
    const colours = isByTime ? `Colour${state.graph === "both" ? " of kernels" : ""}: ${share}.` : `Colour: kind of ${{ compiled: "kernel", original: "op", both: "op and kernel" }[state.graph]}.`;
    side.classList.add("idle");
    side.replaceChildren(make("h3", {}, `${plural(perCall.length, "kernel")} per call, ${plural(DATA.model.ops, "op")} in the model`),
      make("p", { class: "note" }, `${cards} ${colours}`),
      isByTime ? legend(HEATS.map((text, i) => [`var(--h${i})`, text])) : kindLegend(shownPanes().flatMap((p) => p.graph.nodes.filter((c) => c.isCounted))),
      make("p", { class: "note" }, "Press a layer to unfold it, a card to see what it is. Drag or arrow keys move, wheel or + and − zoom, f fits, n and p go to what reads a value and what makes it, / searches."));
  }
  listeners.push(() => {
    if (root.hidden) return;
    if (drawn !== state.graph) arrange();
    else if (marks !== `${state.kernel} ${state.node} ${state.value}`) marked();
    else if (shownPanes().every((p) => p.colour === colour())) return;
    for (const p of shownPanes()) { p.colour = colour(); p.paint(); }
    if (side.classList.contains("idle")) help();
    equip();
  });
  root.panes = () => ({ compiled, original: source() });
  arrange();
}, true);
