// Puts the views together: tabs, keys, the theme, the address.
function begin() {
  document.getElementById("name").textContent = DATA.title;
  const tabs = document.getElementById("tabs"), main = document.getElementById("main");
  views.forEach((v, i) => {
    v.section = make("section", { class: v.isWhole ? "whole" : null, role: "tabpanel", id: `view${i}`, "aria-label": v.name, hidden: true });
    v.tab = make("button", { type: "button", role: "tab", "aria-controls": `view${i}`, onclick: () => open(v.name) }, v.name, make("kbd", {}, `${i + 1}`));
    tabs.append(v.tab);
    main.append(v.section);
  });
  tabs.addEventListener("keydown", (e) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[e.key];
    if (!step) return;
    const now = views.findIndex((v) => v.tab === document.activeElement), next = views[(now + step + views.length) % views.length];
    open(next.name);
    next.tab.focus();
  });
  setTheme(matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
  document.getElementById("theme").addEventListener("click", () => {
    const theme = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
    setTheme(theme);
    go({ theme }, false);
  });
  search();
  document.addEventListener("keydown", (e) => {
    if (/^(INPUT|SELECT|TEXTAREA)$/.test(e.target.tagName) || e.ctrlKey || e.metaKey || e.altKey) return;
    if (e.key === "/") { e.preventDefault(); document.getElementById("search").focus(); }
    else if (views[Number(e.key) - 1]) { const v = views[Number(e.key) - 1]; open(v.name); v.tab.focus(); }
  });
  restore();
  document.documentElement.dataset.ready = "yes";
}

begin();
window.report = { data: DATA, state, views, open, choose, chooseNode, chooseValue, find, go, standalone, picture };
