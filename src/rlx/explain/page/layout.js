// Layered drawing (Sugiyama): each card is below all that it reads; long edges keep clear of cards;
// a drawing that is much taller than its place is continued in columns beside.
const GAP = 26, BETWEEN = 52, SWEEPS = 6, MOST_DUMMIES = 6000, DUMMY = 10;

/** `cards` have key, w, h, late, and `top`, the room that is written on above; `edges` are [from, to],
 * and whether it is a stub, which orders cards but is no line. Places the cards (x, y), and returns the
 * routes of edges by "from to", and the size of the whole. */
function laidOut(cards, edges, place) {
  const number = new Map(cards.map((c, i) => [c.key, i]));
  const links = edges.map(([a, b, isStub]) => [number.get(a), number.get(b), isStub]).filter(([a, b]) => a !== undefined && b !== undefined && a !== b);
  const depth = depths(cards, links);
  const items = cards.map((c, i) => ({ card: c, w: c.w, h: c.h, depth: depth[i], above: [], below: [], x: 0 }));
  const chains = joined(items, links.filter(([, , isStub]) => !isStub));
  const rows = [];
  for (const item of items) (rows[item.depth] ??= []).push(item);
  for (let i = 0; i < rows.length; i += 1) rows[i] ??= [];
  ordered(rows);
  aligned(rows);
  const size = stacked(rows, place);
  const routes = new Map();
  for (const [a, b, chain] of chains) routes.set(`${cards[a].key} ${cards[b].key}`, route(items[a], chain, items[b]));
  for (const item of items) if (item.card) { item.card.x = item.x; item.card.y = item.y; }
  return { ...size, routes };
}

/** The longest path to each; links that lead back, as between folded layers, are left out. What runs
 * before calls, and what is given, is as low as its readers allow. */
function depths(cards, links) {
  const above = cards.map(() => []), below = cards.map(() => []), found = new Array(cards.length).fill(-1);
  const mark = new Array(cards.length).fill(0), order = [];
  for (const [a, b] of links) below[a].push(b);
  for (let start = 0; start < cards.length; start += 1) {
    const stack = [[start, 0]];
    while (stack.length) {
      const top = stack[stack.length - 1], [at, next] = top;
      if (next === 0) { if (mark[at]) { stack.pop(); continue; } mark[at] = 1; }
      if (next === below[at].length) { mark[at] = 2; order.push(at); stack.pop(); continue; }
      top[1] += 1;
      const to = below[at][next];
      if (mark[to] !== 1) { above[to].push(at); if (!mark[to]) stack.push([to, 0]); }
    }
  }
  order.reverse();
  for (const at of order) found[at] = 1 + above[at].reduce((most, a) => Math.max(most, cards[a].late ? -1 : found[a]), -1);
  for (const at of [...order].reverse()) if (cards[at].late || cards[at].sort === "input") {
    const readers = below[at].map((b) => found[b]);
    if (readers.length) found[at] = Math.max(0, Math.min(...readers) - 1);
  }
  return found;
}

/** Links as chains of narrow dummies, one for each row that they pass. */
function joined(items, links) {
  const chains = [];
  const needed = links.reduce((sum, [a, b]) => sum + Math.max(0, items[b].depth - items[a].depth - 1), 0);
  for (const [a, b] of links) {
    const chain = [];
    if (items[b].depth > items[a].depth) {
      let last = items[a];
      for (let d = items[a].depth + 1; needed <= MOST_DUMMIES && d < items[b].depth; d += 1) {
        const dummy = { card: null, w: DUMMY, h: 0, depth: d, above: [last], below: [], x: 0 };
        last.below.push(dummy);
        items.push(dummy);
        chain.push(dummy);
        last = dummy;
      }
      last.below.push(items[b]);
      items[b].above.push(last);
    }
    chains.push([a, b, chain]);
  }
  return chains;
}

/** Each row in the order of the middles of its neighbours, down and up again. */
function ordered(rows) {
  const number = (row) => row.forEach((item, i) => { item.at = i - row.length / 2; });
  rows.forEach(number);
  for (let sweep = 0; sweep < SWEEPS; sweep += 1) {
    const isDown = sweep % 2 === 0;
    for (const row of isDown ? rows : [...rows].reverse()) {
      for (const item of row) {
        const near = isDown ? item.above : item.below;
        item.wish = near.length ? near.reduce((s, n) => s + n.at, 0) / near.length : item.at;
      }
      row.sort((p, q) => p.wish - q.wish || p.at - q.at);
      number(row);
    }
  }
}

/** Centres near the middles of their neighbours, none on another. */
function aligned(rows) {
  for (const row of rows) spread(row, row.map(() => 0));
  for (let sweep = 0; sweep < SWEEPS; sweep += 1) {
    const isDown = sweep % 2 === 0;
    for (const row of isDown ? rows : [...rows].reverse()) spread(row, row.map((item) => {
      const near = isDown ? item.above : item.below, every = near.length ? near : isDown ? item.below : item.above;
      const own = item.card ? every.filter((n) => n.card) : [], all = own.length ? own : every; // a chain of cards is straight, whatever passes beside it
      return all.length ? all.reduce((s, n) => s + n.x + n.w / 2, 0) / all.length : item.x + item.w / 2;
    }));
  }
}

/** From its left edge to the right end of itself, or of the shapes that are written below it. */
const spanOf = (item) => Math.max(item.w, item.card ? item.w / 2 + (item.card.beside ?? 0) : 0);

/** Blocks of items that would overlap are moved together to the mean of what they wish for. */
function spread(row, wishes) {
  const blocks = [];
  row.forEach((item, i) => {
    const weight = item.card ? 20 : 1; // cards keep their places, edges make way
    blocks.push({ items: [item], offset: [0], w: spanOf(item), weight, sum: weight * (wishes[i] - item.w / 2) });
    while (blocks.length > 1) {
      const b = blocks[blocks.length - 1], a = blocks[blocks.length - 2];
      if (a.sum / a.weight + a.w + GAP <= b.sum / b.weight) break;
      blocks.pop();
      const shift = a.w + GAP;
      a.sum += b.sum - shift * b.weight;
      a.weight += b.weight;
      a.items.push(...b.items);
      a.offset.push(...b.offset.map((o) => o + shift));
      a.w += GAP + b.w;
    }
  });
  for (const b of blocks) b.items.forEach((item, i) => { item.x = b.sum / b.weight + b.offset[i]; });
}

/** Rows below each other, in as many columns as make the drawing largest in its place. */
function stacked(rows, place) {
  const top = rows.map((row) => Math.max(0, ...row.map((i) => i.card?.top ?? 0)));
  const high = rows.map((row, r) => top[r] + Math.max(0, ...row.map((i) => i.h)) + BETWEEN), total = high.reduce((a, b) => a + b, 0);
  let best = null;
  for (let n = 1; n <= Math.min(12, Math.max(1, rows.length)); n += 1) {
    const found = inColumns(rows, high, total / n);
    const scale = Math.min(1.1, place.w / found.w, place.h / found.h);
    if (!best || scale > best.scale * 1.1) best = { ...found, scale };
  }
  for (const { from, to, left, at } of best.columns) {
    let y = 0;
    for (let r = from; r < to; r += 1) { for (const item of rows[r]) { item.column = at; item.x += at - left; item.y = y + top[r]; } y += high[r]; }
  }
  return { w: best.w, h: Math.max(40, best.h), columns: best.columns.length };
}

/** Rows cut into columns of about such a height, each as wide as its rows and what is written beside them. */
function inColumns(rows, high, height) {
  const columns = [];
  let from = 0, y = 0, at = 0, lowest = 0;
  const close = (to) => {
    const items = rows.slice(from, to).flat();
    const left = Math.min(0, ...items.map((i) => i.x)), least = items.length ? Math.min(...items.map((i) => i.x)) : left;
    const right = Math.max(least + 1, ...items.map((i) => i.x + spanOf(i)));
    columns.push({ from, to, left: least, at });
    at += right - least + 2.5 * GAP;
    lowest = Math.max(lowest, y - BETWEEN);
    from = to;
    y = 0;
  };
  rows.forEach((row, r) => { if (y > 0 && y + high[r] / 2 > height) close(r); y += high[r]; });
  close(rows.length);
  return { columns, w: at - 2.5 * GAP, h: lowest };
}

/** A path from the bottom of one card to the top of another; into the next column through the gap. */
function route(a, chain, b) {
  const start = [a.x + a.w / 2, a.y + a.h], end = [b.x + b.w / 2, b.y];
  if (a.column !== b.column || end[1] <= start[1]) return around(start, end, a.column === b.column, a, b);
  let path = `M${start[0]} ${start[1]}`, [x, y] = start;
  for (const p of [...chain.map((d) => [d.x + d.w / 2, d.y + 20]), end]) {
    const bend = (p[1] - y) / 2;
    path += `C${x} ${y + bend} ${p[0]} ${p[1] - bend} ${p[0]} ${p[1]}`;
    [x, y] = p;
  }
  return path;
}

function around([x1, y1], [x2, y2], isSame, a, b) {
  const gap = isSame ? Math.max(a.x + a.w, b.x + b.w) + GAP / 2 : b.column - GAP * 0.8;
  return `M${x1} ${y1}V${y1 + 33}H${gap}V${y2 - 18 - (b.card?.top ?? 0)}H${x2}V${y2}`;
}
