// Texts whose contrast to what is behind them is below 4.5.
const parse = (c) => { const m = c.match(/[\d.]+/g).map(Number); return m.length < 4 ? [...m, 1] : m; };
const part = (v) => { v /= 255; return v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; };
const light = (c) => 0.2126 * part(c[0]) + 0.7152 * part(c[1]) + 0.0722 * part(c[2]);
// What is drawn below a text of a chart: the last opaque shape before it that contains its middle.
function drawn(e) {
  const box = e.getBoundingClientRect(), x = box.x + box.width / 2, y = box.y + box.height / 2;
  let found = null;
  for (const s of e.ownerSVGElement.querySelectorAll("rect, circle")) {
    if (s.compareDocumentPosition(e) & Node.DOCUMENT_POSITION_PRECEDING) break;
    const b = s.getBoundingClientRect(), fill = getComputedStyle(s).fill;
    if (b.left <= x && x <= b.right && b.top <= y && y <= b.bottom && fill !== "none" && parse(fill)[3] === 1) found = parse(fill);
  }
  return found;
}
function behind(e) {
  if (e.closest(".node")) return parse(getComputedStyle(e.closest(".node").querySelector("rect")).fill);
  const shape = e instanceof SVGElement ? drawn(e) : null;
  if (shape) return shape;
  for (; e; e = e.parentElement) { const c = parse(getComputedStyle(e).backgroundColor); if (c[3] === 1) return c; }
  return [255, 255, 255, 1];
}
const worst = [];
const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
while (walk.nextNode()) {
  const e = walk.currentNode.parentElement;
  if (!walk.currentNode.textContent.trim() || !e.getClientRects().length || /SCRIPT|STYLE|NOSCRIPT|OPTION/.test(e.tagName)) continue;
  const style = getComputedStyle(e);
  const own = parse(e instanceof SVGElement ? style.fill : style.color);
  const [a, b] = [light(own), light(behind(e))];
  const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  if (ratio < 4.5) worst.push([ratio.toFixed(2), e.tagName, e.textContent.slice(0, 40)]);
}
return worst.slice(0, 5);
