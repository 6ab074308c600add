// Everything about one kernel, or one node of the model, at the side of the graph.
function details(side, k) {
  const rows = [["kernel", `k${k.i}`], ["runs as", k.strategy], ["result", k.shape], ["as a formula", k.formula], ["memory traffic", bytes(k.bytes)], ["arithmetic", flops(k.flops)],
    ["predicted", time(k.predicted_ns)], ["measured", k.measured_ns === null ? "" : time(k.measured_ns)], ["share of kernel time", k.phase === "prologue" ? "none: runs once, when weights are set" : percent(shareOf(k))]];
  if (k.measured_ns) {
    rows.push(["rate", `${(k.bytes / k.measured_ns).toFixed(1)} GB/s, ${(k.flops / k.measured_ns).toFixed(1)} GFLOP/s`]);
    if (k.roofline_share !== null) rows.push(["of roofline", hasPeak(k) ? `${(100 * k.roofline_share).toFixed(0)} %` : `unknown: no peak is stated for ${k.arithmetic}`]);
  }
  side.replaceChildren(make("h3", {}, breakable(k.title)),
    make("dl", {}, ...rows.filter(([, v]) => v).flatMap(([n, v]) => [make("dt", {}, n), make("dd", {}, breakable(v))])));
  const flows = (from, to) => DATA.graph.edges.filter((e) => e[from] === `k${k.i}`).map((e) => [e[to], e[2]]);
  links(side, "Reads", flows(1, 0));
  list(side, "Weights", k.weights);
  links(side, "Read by", flows(0, 1));
  list(side, "Part of", [...new Set(k.where.map(plainName))]);
  list(side, "Ops", k.ops);
  list(side, "Schedule", k.schedule);
  const related = k.decisions.map((i) => DATA.decisions[i]).sort((a, b) => Math.abs(b.ns) - Math.abs(a.ns));
  if (related.length) {
    side.append(make("h4", {}, "Decisions"), make("ul", {}, ...related.slice(0, 12).map((d) =>
      make("li", {}, make("span", { class: d.verdict ? "yes" : "no" }, d.verdict ? "taken " : "refused "), breakable(`${d.what}: ${d.reason}`)))));
  }
  if (k.source !== null) side.append(make("h4", {}, "IR"), make("pre", { tabindex: "0", "aria-label": "IR of the kernel" }, DATA.sources[k.source]));
}

const valueName = (key) => ({ k: () => DATA.kernels[key.slice(1)].title, n: () => DATA.model.nodes[key.slice(1)].op, i: () => DATA.inputs[key.slice(1)][0], o: () => DATA.outputs[key.slice(1)][0] })[key[0]]();

function links(side, title, flows) {
  if (!flows.length) return;
  const link = ([key, shape]) => make("li", {}, valueSort(key), make("button", { type: "button", class: "link", onclick: () => chooseKey(key) }, breakable(valueName(key))), ` ${shape}`);
  side.append(make("h4", {}, title), make("ul", {}, ...flows.slice(0, 40).map(link), flows.length > 40 && make("li", { class: "dim" }, `${flows.length - 40} more`)));
}
const valueSort = (key) => ({ i: "input ", o: "output " })[key[0]] ?? "";
const chooseKey = (key) => ({ k: () => choose(Number(key.slice(1))), n: () => chooseNode(Number(key.slice(1))) })[key[0]]?.() ?? chooseValue(key);

/** An input or output, with what reads or makes it in the graphs that are shown. */
function valueDetails(side, key) {
  const [name, formula, shape] = (key[0] === "i" ? DATA.inputs : DATA.outputs)[key.slice(1)];
  const rows = [["shape", shape], ["as a formula", formula !== shape && formula]].filter(([, v]) => v);
  side.replaceChildren(make("h3", {}, breakable(name)), make("p", { class: "note" }, valueSort(key)),
    make("dl", {}, ...rows.flatMap(([n, v]) => [make("dt", {}, n), make("dd", {}, breakable(v))])));
  const [title, from, to] = key[0] === "i" ? ["Read by", 0, 1] : ["Written by", 1, 0];
  for (const [graph, sort, isShown] of [[DATA.graph, "kernels", state.graph !== "original"], [DATA.model, "ops of the model", state.graph !== "compiled"]]) {
    if (isShown) links(side, `${title} ${sort}`, graph.edges.filter((e) => e[from] === key).map((e) => [e[to], e[2]]));
  }
}

function nodeDetails(side, i) {
  const n = DATA.model.nodes[i], kernels = kernelsOf(n);
  const flows = (from, to) => DATA.model.edges.filter((e) => e[from] === `n${i}`).map((e) => [e[to], e[2]]);
  side.replaceChildren(make("h3", {}, breakable(n.op)), make("dl", {}, make("dt", {}, "result"), make("dd", {}, n.shape)));
  list(side, "Names", n.names.map(plainName));
  links(side, "Reads", flows(1, 0));
  links(side, "Read by", flows(0, 1));
  if (!kernels.length) return;
  side.append(make("h4", {}, "Kernels of these names"), make("ul", {}, ...kernels.slice(0, 20).map((k) => make("li", {}, make("button", { type: "button", class: "link", onclick: () => choose(k.i) }, breakable(k.title)), ` ${time(kernelTime(k))}`))));
}

function list(side, title, items) {
  if (!items.length) return;
  const more = items.length > 40 ? [make("li", { class: "dim" }, `${items.length - 40} more`)] : [];
  side.append(make("h4", {}, title), make("ul", {}, ...items.slice(0, 40).map((t) => make("li", {}, breakable(t))), ...more));
}

/** Which kernels came of a node, and the other way round: those that have all of its names. */
const isOf = (node, kernel) => node.names.length > 0 && node.names.every((name) => kernel.where.includes(name));
const kernelsOf = (node) => DATA.kernels.filter((k) => isOf(node, k));
const nodesOf = (kernel) => DATA.model.nodes.flatMap((n, i) => (isOf(n, kernel) ? [i] : []));
