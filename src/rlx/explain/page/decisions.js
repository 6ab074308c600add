// Every decision, to be sifted and sorted.
view("Decisions", (root) => {
  const state = { text: "", verdict: "", what: "", order: "ns", isUp: false, shown: 300 };
  const kinds = [...new Set(DATA.decisions.map((d) => d.what))].sort();
  const change = (name) => (e) => { state[name] = e.target.value; state.shown = 300; show(); };
  const text = make("input", { type: "search", placeholder: "text", "aria-label": "Decisions with this text", oninput: change("text") });
  const verdict = make("select", { "aria-label": "Verdict", onchange: change("verdict") }, ...[["", "taken and refused"], ["yes", "taken"], ["no", "refused"]].map(([v, t]) => make("option", { value: v }, t)));
  const what = make("select", { "aria-label": "Kind", onchange: change("what") }, make("option", { value: "" }, "every kind"), ...kinds.map((k) => make("option", { value: k }, k)));
  const status = make("span", { class: "dim", role: "status" });
  const body = make("tbody");
  const columns = [["verdict", "verdict"], ["what", "decision"], ["where", "where"], ["reason", "why"], ["ns", "predicted"], ["measured", "measured"], ["bytes", "bytes"], ["launches", "launches"]];
  const heads = columns.map(([key, name]) => make("th", { scope: "col", "aria-sort": "none" }, make("button", { type: "button", onclick: () => sort(key) }, name)));
  const more = make("button", { type: "button", onclick: () => { state.shown += 600; show(); } }, "Show more");
  root.append(make("div", { class: "filters" }, text, verdict, what, status), make("table", {}, make("thead", {}, make("tr", {}, ...heads)), body), more);
  root.filterText = (t) => { text.value = t; state.text = t; show(); };

  function sort(key) {
    state.isUp = state.order === key ? !state.isUp : false;
    state.order = key;
    show();
  }
  const value = (d) => (state.order === "where" ? d.where.join() : state.order === "measured" ? (d.measured ? d.measured.ns : -Infinity) : d[state.order]);
  function found() {
    const wanted = state.text.toLowerCase();
    const fits = DATA.decisions.filter((d) => (!state.verdict || (state.verdict === "yes") === d.verdict) && (!state.what || d.what === state.what) && (!wanted || d.find.includes(wanted)));
    const sign = state.isUp ? 1 : -1;
    return fits.sort((a, b) => { const p = value(a), q = value(b); return p < q ? -sign : p > q ? sign : a.i - b.i; });
  }
  function show() {
    const all = found();
    status.textContent = `${count(all.length)} of ${count(DATA.decisions.length)}`;
    more.hidden = all.length <= state.shown;
    columns.forEach(([key], i) => heads[i].setAttribute("aria-sort", key !== state.order ? "none" : state.isUp ? "ascending" : "descending"));
    body.replaceChildren(...all.slice(0, state.shown).map(line));
  }
  function line(d) {
    const by = d.measured ? `${time(d.measured.ns)} (${time(d.measured.low)} to ${time(d.measured.high)})` : "";
    return make("tr", {},
      make("td", { class: d.verdict ? "yes" : "no" }, d.verdict ? "taken" : "refused"), make("td", {}, d.what), make("td", {}, short(d.where)), make("td", {}, d.reason),
      make("td", { class: "number" }, d.ns ? time(d.ns) : ""), make("td", { class: "number" }, by), make("td", { class: "number" }, d.bytes ? bytes(d.bytes) : ""), make("td", { class: "number" }, d.launches ? count(d.launches) : ""));
  }
  show();
});
