// Rows that are alike, such as those of equal layers, as one.

/** Equivalent decisions, such as those of equal layers, as one with their sum. */
const grouped = (decisions) => alike(decisions, (d) => d.group).map(decisionGroup);

function decisionGroup(all) {
  const sum = (key) => all.reduce((s, d) => s + d[key], 0), largest = all.reduce((a, b) => (Math.abs(a.ns) >= Math.abs(b.ns) ? a : b));
  const reason = new Set(all.map((d) => d.reason)).size > 1 ? `largest: ${largest.reason}` : all[0].reason;
  return { ...all[0], all, reason, ns: sum("ns"), bytes: sum("bytes"), launches: sum("launches"), measured: measuredOf(all) };
}

/** Equal kernels, such as those of equal layers, as one with their sums. */
function kernelGroup(all) {
  const sum = (of) => all.reduce((s, k) => s + of(k), 0), timed = all.filter((k) => k.roofline_share !== null && k.measured_ns && hasPeak(k));
  const figures = Object.fromEntries(["predicted_ns", "bytes", "flops", "weight_bytes", "state_bytes"].map((key) => [key, sum((k) => k[key])]));
  const roof = timed.length ? timed.reduce((s, k) => s + k.roofline_share * k.measured_ns, 0) / timed.reduce((s, k) => s + k.measured_ns, 0) : null;
  const slowest = all.reduce((a, b) => (kernelTime(a) >= kernelTime(b) ? a : b));
  return { ...slowest, ...figures, all, slowest, ns: sum(kernelTime), share: sum(shareOf), roof };
}

/** Rows of the same key together, in the order of the first of each. */
function alike(rows, keyOf) {
  const held = new Map();
  for (const row of rows) { const key = keyOf(row), own = held.get(key); if (own) own.push(row); else held.set(key, [row]); }
  return [...held.values()];
}

/** Names that differ in numbers alone as one: encoder.layer.0–5. */
function mergedName(rows) {
  const names = rows.map((d) => plainName(namesFirst(d.where)[0] ?? "")), found = names.map((n) => n.match(/\d+/g) ?? []);
  if (names.length < 2 || found.some((n) => n.length !== found[0].length)) return "";
  let at = -1;
  return names[0].replaceAll(/\d+/g, (held) => {
    at += 1;
    const values = [...new Set(found.map((n) => Number(n[at])))].sort((a, b) => a - b);
    if (values.length === 1) return held;
    const last = values[values.length - 1];
    return `${values[0]}${last - values[0] + 1 === values.length ? "–" : "…"}${last}`;
  });
}
const mergedPlaces = (rows) => mergedName(rows) || places(rows[0].where);
/** All names of one, or those of many as one name. */
const mergedNames = (rows) => mergedName(rows) || [...new Set(namesFirst(rows[0].where).map(plainName))];

/** What reversing decisions changed, each set that was reversed together once. */
function measuredOf(decisions) {
  const sets = new Map(decisions.filter((d) => d.measured).map((d) => [JSON.stringify([d.what, d.measured]), d.measured]));
  if (!sets.size) return null;
  const sum = (key) => [...sets.values()].reduce((s, m) => s + m[key], 0), own = decisions.filter((d) => d.measured).length;
  return { ns: sum("ns"), low: sum("low"), high: sum("high"), own, beyond: Math.max(0, sum("count") - own) };
}
