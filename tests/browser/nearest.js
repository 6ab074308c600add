// Names of the limits of the shown roofline, and how far each is from any line or dot, in pixels.
const shown = document.querySelector('section:not([hidden]) svg');
const at = (e, x, y) => {
  const p = new DOMPoint(x, y).matrixTransform(e.getCTM());
  return [p.x, p.y];
};
const circles = [...shown.querySelectorAll('circle')].map((c) => [+c.getAttribute('cx'), +c.getAttribute('cy'), +c.getAttribute('r')]);
const lines = [...shown.querySelectorAll('.roof')].flatMap((l) => {
  const n = Math.ceil(l.getTotalLength());
  return Array.from({ length: n + 1 }, (_, i) => { const p = l.getPointAtLength(i); return [p.x, p.y, 0]; });
});
return [...shown.querySelectorAll('.roofname')].map((e) => {
  const { x, y, width, height } = e.getBBox();
  const text = Array.from({ length: 21 }, (_, i) => at(e, x + width * i / 20, y + height / 2));
  return [e.textContent, Math.min(...text.flatMap(([px, py]) => [...circles, ...lines].map(([cx, cy, r]) => Math.hypot(px - cx, py - cy) - r)))];
});
