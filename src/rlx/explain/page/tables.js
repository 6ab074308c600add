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

/** Columns are [key, title, value for sorting, cell, is it a number]; the rest is state of the table. */
function sortedTable(root, name, columns, rows, order) {
  const state_ = { order, isUp: false, most: 200 };
  const body = make("tbody"), more = button("Show more", () => { state_.most += 600; show(); });
  const heads = columns.map((c) => make("th", { scope: "col", "aria-sort": "none", class: c[4] ? "number" : null },
    button(c[1], () => { state_.isUp = state_.order === c[0] ? !state_.isUp : !c[4]; state_.order = c[0]; show(); })));
  let held = rows;
  root.append(make("table", { "aria-label": name }, make("thead", {}, make("tr", {}, ...heads)), body), more);
  function sorted() {
    const by = columns.find((c) => c[0] === state_.order), sign = state_.isUp ? 1 : -1;
    return held.map((row, i) => [row, by[2](row), i]).sort((a, b) => (a[1] < b[1] ? -sign : a[1] > b[1] ? sign : a[2] - b[2])).map(([row]) => row);
  }
  function show() {
    const all = sorted();
    more.hidden = all.length <= state_.most;
    columns.forEach((c, i) => heads[i].setAttribute("aria-sort", c[0] !== state_.order ? "none" : state_.isUp ? "ascending" : "descending"));
    body.replaceChildren(...all.slice(0, state_.most).map((row) => make("tr", {},
      ...columns.map((c) => make("td", { class: c[4] ? "number" : null, "data-label": c[1] }, breakable(c[3](row)))))));
  }
  show();
  return {
    set: (fresh) => { held = fresh; state_.most = 200; show(); },
    csv: () => csv(columns.map((c) => c[1]), sorted().map((row) => columns.map((c) => c[2](row)))),
  };
}
