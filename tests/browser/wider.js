// Parts of the page that are wider than their place, texts of charts beyond their edge, and controls
// that are out of reach.
const wide = [document.documentElement, document.querySelector("section:not([hidden])"), document.querySelector("header"), ...document.querySelectorAll("section:not([hidden]) :is(.head, .tools, .side, table, .facts, .legend)")];
const found = wide.filter((e) => e && e.scrollWidth > e.clientWidth + 1).map((e) => [e.tagName, e.className, e.scrollWidth, e.clientWidth]);
for (const t of document.querySelectorAll("section:not([hidden]) svg.plot text")) {
  const own = t.getBoundingClientRect(), plot = t.ownerSVGElement.getBoundingClientRect();
  if (own.left < plot.left - 1 || own.right > plot.right + 1) found.push(["text", t.textContent, own.left, own.right]);
}
for (const b of document.querySelectorAll("header :is(button, input), section:not([hidden]) :is(.head, .tools) :is(button, select, input)")) {
  const own = b.getBoundingClientRect();
  if (own.width && (own.left < -1 || own.right > innerWidth + 1)) found.push([b.tagName, b.textContent, own.left, own.right]);
}
return found.slice(0, 8);
