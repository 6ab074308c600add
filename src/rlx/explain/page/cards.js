// What a graph shows: a card for each kernel or node, or for a layer that is folded.
const PAD = 10, LINE = 15, WIDEST_LINE = 26;

/** Lines of whole words; a word is never cut. */
function wrapped(text, most = WIDEST_LINE) {
  const lines = [], ends = /^[a-z]+\d*\[/.test(text) ? /(?<=\s)/ : /(?<=[\s_/.,+\-])/; // a shape between its dims only
  for (const word of text.split(ends)) {
    const last = lines.length - 1;
    if (last >= 0 && (lines[last] + word).trimEnd().length <= most) lines[last] += word;
    else lines.push(word);
  }
  return lines.map((l) => l.trim()).filter((l) => l);
}

/** A card of a title and lines, as large as they need. */
function cardOf(key, title, lines, more) {
  const head = wrapped(title), rest = lines.flatMap((l) => wrapped(l, WIDEST_LINE + 4));
  const w = Math.ceil(Math.max(90, ...head.map((l) => widthOf(l, 12, 600)), ...rest.map((l) => widthOf(l)))) + 2 * PAD;
  return { key, title, head, rest, w, h: 12 + LINE * (head.length + rest.length), ns: 0, share: 0, kind: 7, members: [], late: false, isCounted: false, sort: "card", ...more };
}

const heat = (share) => (share >= 0.2 ? 5 : share >= 0.1 ? 4 : share >= 0.05 ? 3 : share >= 0.01 ? 2 : share > 0.001 ? 1 : 0);
const HEATS = ["below 0.1 %", "0.1 to 1 %", "1 to 5 %", "5 to 10 %", "10 to 20 %", "20 % and more"];
const lastPart = (name) => { const parts = name.split("/").filter((p) => p); return parts[parts.length - 1] ?? name; };

/** The kernels of the compiled program. */
function compiledGraph() {
  const layers = DATA.graph.layers;
  const nodes = DATA.kernels.map((k, i) => {
    const name = k.where.length ? lastPart(plainName(namesFirst(k.where)[0])) : "";
    const late = k.phase === "prologue";
    return cardOf(`k${i}`, k.title, [name !== layers[i] ? name : "", late ? "once, when weights are set" : `${time(kernelTime(k))} · ${percent(shareOf(k))}`].filter((l) => l),
      { kernel: i, ns: late ? 0 : kernelTime(k), share: shareOf(k), kind: k.kind, layer: layers[i], late, isCounted: !late, label: `${k.title}: ${places(k.where)}` });
  });
  return { name: "kernels", unit: "kernel", nodes: [...ends("i"), ...nodes, ...ends("o")], edges: DATA.graph.edges, hasTimes: true };
}

/** The nodes of the model as it was given. */
function sourceGraph() {
  const nodes = DATA.model.nodes.map((n, i) => cardOf(`n${i}`, n.op, n.names.length && lastPart(plainName(namesFirst(n.names)[0])) !== n.layer ? [lastPart(plainName(namesFirst(n.names)[0]))] : [],
    { node: i, kind: n.kind, layer: n.layer, sort: n.isOp ? "card" : "input", isCounted: n.isOp, label: `${n.op}: ${places(n.names)}` }));
  return { name: "ops", unit: "op", nodes: [...ends("i"), ...nodes, ...ends("o")], edges: DATA.model.edges, hasTimes: false };
}

function ends(which) {
  const values = which === "i" ? DATA.inputs : DATA.outputs, sort = which === "i" ? "input" : "output";
  return values.map(([name, , shape], i) => cardOf(`${which}${i}`, name, [shape], { sort, layer: "", label: `${sort} ${name} ${shape}` }));
}

/** The graph with layers folded but for those in `open`: cards, and edges between them with shapes. */
function folded(graph, open, hasLate) {
  const home = new Map(), cards = [], byLayer = new Map();
  for (const node of graph.nodes) {
    if (node.late && !hasLate) continue;
    const sizes = node.layer ? byLayer.get(node.layer) : null;
    if (!node.layer || open.has(node.layer)) { cards.push(node); home.set(node.key, node.key); }
    else if (sizes) { sizes.members.push(node); home.set(node.key, sizes.key); }
    else {
      const card = { key: `layer ${node.layer}`, members: [node], layer: node.layer };
      byLayer.set(node.layer, card);
      cards.push(card);
      home.set(node.key, card.key);
    }
  }
  const made = cards.map((c) => (c.members.length ? layerCard(graph, c) : c));
  const edges = new Map();
  for (const [a, b, shape] of graph.edges) {
    const from = home.get(a), to = home.get(b);
    if (from === undefined || to === undefined || from === to) continue;
    const key = `${from} ${to}`, held = edges.get(key) ?? { from, to, shapes: new Set() };
    held.shapes.add(shape);
    edges.set(key, held);
  }
  stubbed([...edges.values()], made);
  return { cards: made, edges: [...edges.values()], home };
}

const MOST_ARROWS = 8, STUB = 11, MOST_STUBS = 3, WIDEST_STUB = 110;

/** A value that more cards read than that has an arrow to the first of them; at the others is a stub
 * with its name. */
function stubbed(edges, cards) {
  const byKey = new Map(cards.map((c) => [c.key, c])), readers = new Map();
  for (const c of cards) { c.stubs = []; c.top = 0; c.least ??= c.w; c.w = c.least; }
  for (const e of edges) { const own = readers.get(e.from); if (own) own.push(e); else readers.set(e.from, [e]); }
  for (const [from, own] of readers) {
    const isMany = own.length > MOST_ARROWS;
    byKey.get(from).readers = isMany ? own.length : 0;
    own.forEach((e, i) => { e.isStub = isMany && i > 0; if (e.isStub) byKey.get(e.to).stubs.push(e); });
  }
  for (const c of cards) if (c.stubs.length) {
    const names = c.stubs.map((e) => fitting(byKey.get(e.from).title.replace(" ▸", ""), WIDEST_STUB, 10.5) || "…");
    c.stubLines = names.length > MOST_STUBS ? [...names.slice(0, MOST_STUBS - 1), `and ${names.length - MOST_STUBS + 1} more`] : names;
    c.top = STUB * c.stubLines.length + (c.sort === "layer" ? 9 : 4);
    c.w = Math.max(c.w, 2 * Math.ceil(Math.max(...c.stubLines.map((l) => widthOf(l, 10.5))) + PAD + 12)); // left of the arrows, which end in the middle
  }
}

const layerName = (graph, layer) => (/^\d+([–…]\d+)?$/.test(layer) ? `${graph.name} ${layer}` : layer);

function layerCard(graph, { key, layer, members }) {
  const ns = members.reduce((s, m) => s + m.ns, 0), share = members.reduce((s, m) => s + m.share, 0);
  const kinds = new Map();
  for (const m of members) kinds.set(m.kind, (kinds.get(m.kind) ?? 0) + m.ns + 1e-9);
  const kind = graph.hasTimes ? [...kinds].sort((a, b) => b[1] - a[1])[0][0] : DATA.anchors.find((f) => kinds.has(f)) ?? 7;
  const name = layerName(graph, layer);
  const own = members.filter((m) => m.isCounted).length, once = members.filter((m) => m.late).length;
  const lines = [[own && plural(own, graph.unit), once && `${count(once)} run once`].filter(Boolean).join(", ") || plural(members.length, "value"), ...(graph.hasTimes ? [`${time(ns)} · ${percent(share)}`] : [])];
  return cardOf(key, `${name} ▸`, lines, { layer, members, ns, share, kind, sort: "layer", label: `${name}, folded: ${lines.join(", ")}. Press to unfold.` });
}
