// Tables: sorted by a column, filtered, as CSV.

/** A text that may be broken after the separators of names, and nowhere else in them. */
const breakable = (c) => (typeof c === "string" ? make("span", {}, ...c.split(/(?<=[\w)\]][_/:])|(?<=[A-Za-z]\.)/).flatMap((part, i) => (i ? [make("wbr"), part] : [part]))) : make("span", {}, c));

/** A table; `numbers` are the columns set to the right. Cells may be elements. */
function table(head, rows, numbers = []) {
  const cell = (c, i) => make("td", { class: numbers.includes(i) ? "number" : null, "data-label": head[i] }, breakable(c));
  return make("table", {},
    head.some((h) => h) && make("thead", {}, make("tr", {}, ...head.map((h, i) => make("th", { scope: "col", class: numbers.includes(i) ? "number" : null }, h)))),
    make("tbody", {}, ...rows.map((row) => make("tr", {}, ...row.map(cell)))));
}

const bar = (part) => make("span", { class: "share" }, make("span", { class: "bar", style: `width:${(100 * Math.min(1, part)).toFixed(1)}%` }));
const shareCell = (part) => make("span", {}, bar(part), percent(part));
const kernelLink = (k) => make("button", { type: "button", class: "link", onclick: () => find(k.i) }, breakable(k.title));

/** Columns have a key, a title and a value for each row, null where there is none. The unit of numbers
 * goes into the title of a saved table; cells and the order are those of values, unless `cell` and
 * `sort` say otherwise. A column whose cell is null is in saved tables alone. */
function sortedTable(root, name, columns, rows, order) {
  const state_ = { order, isUp: false, most: 200 }, seen = columns.filter((c) => c.cell !== null);
  const body = make("tbody"), more = button("Show more", () => { state_.most += 600; show(); });
  const isNumber = (c) => c.isNumber ?? "unit" in c, cell = (c, row) => (c.cell ?? ((r) => plainValue(c.value(r))))(row);
  const heads = seen.map((c) => make("th", { scope: "col", "aria-sort": "none", class: isNumber(c) ? "number" : null },
    button(c.title, () => { state_.isUp = state_.order === c.key ? !state_.isUp : !isNumber(c); state_.order = c.key; show(); })));
  let held = rows;
  root.append(make("table", { "aria-label": name }, make("thead", {}, make("tr", {}, ...heads)), body), more);
  function sorted() {
    const by = columns.find((c) => c.key === state_.order), sign = state_.isUp ? 1 : -1;
    const key = (row) => { const v = (by.sort ?? by.value)(row); return Array.isArray(v) ? v.join(" ") : v; };
    const compared = ([, a, i], [, b, j]) => (a === null || b === null ? (a === null) - (b === null) : a < b ? -sign : a > b ? sign : 0) || i - j;
    return held.map((row, i) => [row, key(row), i]).sort(compared).map(([row]) => row);
  }
  function show() {
    const all = sorted();
    more.hidden = all.length <= state_.most;
    seen.forEach((c, i) => heads[i].setAttribute("aria-sort", c.key !== state_.order ? "none" : state_.isUp ? "ascending" : "descending"));
    body.replaceChildren(...all.slice(0, state_.most).map((row) => make("tr", {},
      ...seen.map((c) => make("td", { class: isNumber(c) ? "number" : null, "data-label": c.title }, breakable(cell(c, row)))))));
  }
  show();
  return {
    set: (fresh) => { held = fresh; state_.most = 200; show(); },
    csv: () => csv(columns.map((c) => (c.unit ? `${c.title} (${c.unit})` : c.title)), sorted().map((row) => columns.map((c) => c.value(row)))),
  };
}
