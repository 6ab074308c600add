// The first page: what was made, what saved most, what the user could change.
view("Overview", (root) => {
  root.append(make("h2", {}, "What was made"));
  root.append(make("div", { class: "facts" }, ...DATA.facts.map(([name, value]) =>
    make("div", { class: "fact" }, make("b", {}, value), make("span", {}, name)))));
  if (DATA.gate) root.append(make("h2", {}, "Predicted against measured"), make("p", { class: "note" }, DATA.gate));
  const taken = grouped(DATA.decisions.filter((d) => d.verdict && d.ns > 0)).sort((a, b) => b.ns - a.ns).slice(0, 5);
  if (taken.length) {
    root.append(make("h2", {}, "The decisions that save most"));
    root.append(table(["decision", "where", "why", "count", "saves"], taken.map((d) =>
      [d.what, short(d.where), d.reason, count(d.times), time(d.ns)]), [3, 4]));
  }
  if (DATA.advice.length) {
    root.append(make("h2", {}, "What only you can change"));
    root.append(table(["advice", "where", "would save"], DATA.advice.map((a) => [a.text, short(a.where), time(a.ns)]), [2]));
  }
  if (DATA.cuts.length) {
    root.append(make("h2", {}, "Where a call leaves native code"));
    root.append(table(["where", "why"], DATA.cuts.map((c) => [short(c.where), c.reason])));
  }
  const slow = DATA.kernels.filter((k) => kernelTime(k)).sort((a, b) => kernelTime(b) - kernelTime(a)).slice(0, 12);
  const all = DATA.kernels.reduce((sum, k) => sum + (kernelTime(k) || 0), 0);
  if (slow.length) {
    const isMeasured = slow.some((k) => k.measured_ns !== null);
    root.append(make("h2", {}, isMeasured ? "The slowest kernels" : "The slowest kernels, as predicted"));
    root.append(table(["kernel", "where", "share", "time", "bytes", "arithmetic"], slow.map((k) =>
      [kernelLink(k), short(k.where), share(kernelTime(k) / all), time(kernelTime(k)), bytes(k.bytes), scaled(k.flops, 1000, ["flop", "Kflop", "Mflop", "Gflop"])]), [3, 4, 5]));
  }
});

/** Equivalent decisions, such as those of equal layers, as one with their total. */
function grouped(decisions) {
  const groups = new Map();
  for (const d of decisions) {
    const known = groups.get(d.group);
    if (known) { known.ns += d.ns; known.times += 1; }
    else groups.set(d.group, { ...d, times: 1 });
  }
  return [...groups.values()];
}

const clipped = (name, most = 64) => (name.length <= most ? name : `${name.slice(0, most / 2 - 1)}…${name.slice(-(most / 2))}`);
const short = (where) => {
  const names = where.slice(0, 2).map((w) => clipped(w));
  return where.length > 2 ? `${names.join(", ")} and ${where.length - 2} more` : names.join(", ");
};

function share(part) {
  return make("span", {}, make("span", { class: "bar", style: `width:${Math.round(part * 90)}px` }), `${(100 * part).toFixed(1)} %`);
}

function kernelLink(kernel) {
  return make("button", { type: "button", onclick: () => { open("Graph"); choose(kernel.i); } }, kernel.title);
}

/** A table; `numbers` are the columns set to the right. */
function table(head, rows, numbers = []) {
  const cell = (c, i) => make("td", { class: numbers.includes(i) ? "number" : null }, c);
  return make("table", {},
    make("thead", {}, make("tr", {}, ...head.map((h) => make("th", { scope: "col" }, h)))),
    make("tbody", {}, ...rows.map((row) => make("tr", {}, ...row.map(cell)))));
}
