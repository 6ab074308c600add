// What is shown, as files: tables as CSV, drawings as SVG and PNG.
const quoted = (value) => (/[",\n]/.test(String(value)) ? `"${String(value).replaceAll('"', '""')}"` : String(value));
/** Numbers to six digits, lists as one text, nothing for what is not known. */
const plainValue = (v) => (Array.isArray(v) ? v.join("; ") : typeof v === "number" ? (Number.isFinite(v) ? String(Number.isInteger(v) ? v : Number(v.toPrecision(6))) : "") : v ?? "");
const csv = (head, rows) => [head, ...rows].map((row) => row.map((c) => quoted(plainValue(c))).join(",")).join("\n") + "\n";

/** A drawing by itself: styles that it has from the page are written into it. */
function standalone(svg, box = null) {
  const size = box ?? { x: 0, y: 0, w: svg.clientWidth, h: svg.clientHeight };
  const copy = svg.cloneNode(true), own = [svg, ...svg.querySelectorAll("*")], theirs = [copy, ...copy.querySelectorAll("*")];
  own.forEach((e, i) => {
    const style = getComputedStyle(e), keep = ["fill", "stroke", "stroke-width", "opacity", "font-size", "font-weight", "font-family", "display"];
    if (e.tagName !== "g" || e === svg) theirs[i].setAttribute("style", keep.map((k) => `${k}:${style.getPropertyValue(k)}`).join(";"));
  });
  if (box) copy.querySelector("g.world")?.setAttribute("transform", "");
  copy.setAttribute("xmlns", SVG);
  copy.setAttribute("viewBox", `${size.x} ${size.y} ${size.w} ${size.h}`);
  copy.setAttribute("width", Math.ceil(size.w));
  copy.setAttribute("height", Math.ceil(size.h));
  const back = draw("rect", { x: size.x, y: size.y, width: size.w, height: size.h, fill: getComputedStyle(document.body).backgroundColor });
  copy.prepend(back);
  return new XMLSerializer().serializeToString(copy);
}

/** The drawing in pixels, twice as many as on the screen while that is no more than 8,000. */
async function picture(text) {
  const image = new Image();
  await new Promise((done, failed) => { image.onload = done; image.onerror = failed; image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(text)}`; });
  const by = Math.min(2, 8000 / Math.max(image.width, image.height)), canvas = make("canvas", { width: Math.round(image.width * by), height: Math.round(image.height * by) });
  canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
  return new Promise((done) => canvas.toBlob(done, "image/png"));
}

function download(name, blob) {
  const link = make("a", { download: `${DATA.title.replaceAll(/[^\w.-]+/g, "_").slice(0, 40)}-${name}`, href: URL.createObjectURL(blob) });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

/** Buttons that save a table or a drawing; `drawing` gives an SVG element, and the box of what is in it. */
function exportButtons(name, { rows = null, drawing = null }) {
  const svg = () => standalone(...drawing());
  return make("span", { class: "exports", role: "group", "aria-label": `Save ${name}` },
    rows && button("CSV", () => download(`${name}.csv`, new Blob([rows()], { type: "text/csv" })), { title: "Save as CSV" }),
    drawing && button("SVG", () => download(`${name}.svg`, new Blob([svg()], { type: "image/svg+xml" })), { title: "Save as SVG" }),
    drawing && button("PNG", async () => download(`${name}.png`, await picture(svg())), { title: "Save as PNG" }));
}
