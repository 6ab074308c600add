/** A model on made-up inputs, timed; and models that are dropped on a page. */

import { RlxError, evaluate, load } from "./rlx.js";

const USUAL_SIZE = 16; // of named dims whose ranges allow it
const ROUNDS = 10;

/** Sizes of the named dims of a model's inputs. */
export function usualSizes(model) {
  const names = Object.entries(model.manifest.names);
  return Object.fromEntries(
    names.map(([name, [low, high]]) => [name, Math.max(low, Math.min(high ?? USUAL_SIZE, USUAL_SIZE))]),
  );
}

/** Inputs of these sizes: small numbers, of which every integer is a valid index of most models. */
export function madeUp(model, sizes) {
  const made = model.inputs.map(({ name, dtype, dims }) => {
    const found = dims.map((d) => evaluate(d, sizes));
    const count = found.reduce((a, b) => a * b, 1);
    const isFloat = dtype === "f32" || dtype === "f64";
    const numbers = Array.from({ length: count }, (_, i) => (isFloat ? Math.sin(i) : (i * 7) % 2));
    return [name, { data: dtype.endsWith("f16") ? new Uint16Array(count) : numbers, dims: found }];
  });
  return Object.fromEntries(made);
}

/** The median of the times of calls, in milliseconds, with the first call's. */
export async function timed(model, inputs, rounds = ROUNDS) {
  const times = [];
  for (let i = 0; i <= rounds; i++) {
    const start = performance.now();
    await model.run(inputs);
    times.push(performance.now() - start);
  }
  const [first, ...rest] = times;
  rest.sort((a, b) => a - b);
  return { first, median: rest[Math.floor(rest.length / 2)], least: rest[0] };
}

/** All files of a drop, those of folders, too, by name. */
export async function droppedFiles(transfer) {
  const files = new Map();
  const visit = async (entry) => {
    if (entry.isFile) {
      const file = await new Promise((done, failed) => entry.file(done, failed));
      files.set(file.name, file);
    } else {
      const reader = entry.createReader();
      const next = () => new Promise((done, failed) => reader.readEntries(done, failed));
      for (let some = await next(); some.length; some = await next())
        for (const inner of some) await visit(inner);
    }
  };
  const entries = [...transfer.items].map((item) => item.webkitGetAsEntry()).filter(Boolean);
  for (const entry of entries) await visit(entry);
  return files;
}

/** A report of a model out of files: its name, what runs it, and its times. */
export async function reported(files, onProgress) {
  if (!files.has("model.json"))
    throw new RlxError("there is no model.json among the files. Drop a folder that rlx compile --web wrote.");
  const model = await load(files, { onProgress });
  try {
    const sizes = usualSizes(model);
    return { ...(await timed(model, madeUp(model, sizes))), ...described(model, sizes) };
  } finally {
    await model.dispose();
  }
}

/** What computes a model, and why that where it is not WebGPU. */
export const engineText = ({ engine, adapter, why }) =>
  engine === "wasm" ? `WebAssembly (${adapter}), as ${why.replace(/\.$/, "")}` : `WebGPU on ${adapter}`;

export function described(model, sizes) {
  const { name } = model.manifest;
  const inputs = model.inputs.map((i) => `${i.name}: ${i.shape}`);
  return { name, engine: engineText(model), loadMs: model.loadMs, sizes, inputs };
}

/** A place that files are dropped on, or chosen with, and a text of what came of it. */
export function dropZone(zone, chooser, status) {
  const take = async (gather) => {
    status.textContent = "reading …";
    try {
      const files = await gather();
      const tell = ({ loaded, total }) => (status.textContent = `loading ${Math.round((100 * loaded) / (total || 1))} %`);
      const { name, engine, loadMs, sizes, first, median, least } = await reported(files, tell);
      const at = Object.entries(sizes).map(([k, v]) => `${k} ${v}`).join(", ") || "its own sizes";
      status.textContent =
        `${name} at ${at}: ${median.toFixed(2)} ms a call (least ${least.toFixed(2)}, first ${first.toFixed(1)}); ` +
        `loaded in ${(loadMs / 1e3).toFixed(2)} s; ${engine}`;
    } catch (error) {
      status.textContent = String(error.message ?? error);
    }
  };
  const highlight = (isOver) => zone.classList.toggle("over", isOver);
  zone.addEventListener("dragover", (event) => (event.preventDefault(), highlight(true)));
  zone.addEventListener("dragleave", () => highlight(false));
  zone.addEventListener("drop", (event) => {
    event.preventDefault();
    highlight(false);
    take(() => droppedFiles(event.dataTransfer));
  });
  chooser.addEventListener("change", () =>
    take(async () => new Map([...chooser.files].map((file) => [file.name, file]))),
  );
}
