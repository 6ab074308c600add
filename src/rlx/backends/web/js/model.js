/**
 * Runs a folder that `rlx compile model.onnx -t wgpu --web folder/` wrote.
 *
 *     import { load } from "./rlx.js";
 *     const model = await load("./");
 *     const { y } = await model.run({ x });
 *
 * Here is what does not depend on what computes: the folder, the interface of the model, the order of
 * calls. What computes is an engine, a module of its own that is imported when it is used: WebGPU, or
 * WebAssembly where there is none. Both read the same weights.
 */

import { adapterFor } from "./adapter.js";
import { described, itemsize, product } from "./arrays.js";
import { FolderError, RlxError, bindSizes, evaluate, unknownIn } from "./sizes.js";
import { file } from "./weights.js";

const FORMAT = 2;
/** Those that are tried, in this order. */
const ENGINES = {
  webgpu: { title: "WebGPU", module: () => import("./webgpu.js") },
  wasm: { title: "WebAssembly", module: () => import("./wasm.js") },
};

/** A loaded model. Calls run one after the other. */
class Model {
  constructor(manifest, folder, options) {
    this.manifest = manifest;
    this.folder = folder;
    this.options = options;
    /** @type {any} */
    this.runtime = null; // an engine that has loaded the model
    this.engine = "";
    this.why = "";
    this.adapter = "";
    this.loadMs = 0;
    this.inputs = manifest.inputs;
    this.outputs = manifest.outputs;
    this.tail = Promise.resolve();
    this.isDisposed = false;
  }

  /** Choose an engine and load all that calls need again, as after a device was lost. */
  reload(device = this.options.device) {
    return this.queued(() => this.open(device));
  }

  async open(device = this.options.device) {
    const start = performance.now();
    this.runtime?.destroy();
    this.runtime = null;
    const asked = this.options.engine ?? (device || this.options.plan ? "webgpu" : null);
    if (asked && !ENGINES[asked])
      throw new RlxError(`there is no engine "${asked}"; there are: ${Object.keys(ENGINES).join(", ")}.`);
    const refused = [];
    const tried = asked ? [[asked, false]] : [["webgpu", true], ["wasm", false]];
    for (const [name, isFree] of tried)
      try {
        await this.opened(name, device, isFree);
        this.why = asked ? "the page asked for it" : refused.map((r) => r.message).join(" ") || "there is an adapter";
        this.loadMs = performance.now() - start;
        return;
      } catch (error) {
        if (error.name !== "RlxError" || error.isOfFolder) throw error;
        refused.push(error);
        if (error.isSlower) tried.push([name, false]);
      }
    if (refused.length === 1) throw refused[0];
    throw new RlxError(refused.map((r) => r.message).join(" "), { cause: refused[0] });
  }

  /** @param {string} name @param {any} device @param {boolean} isFree to refuse, as another is faster? */
  async opened(name, device, isFree) {
    const { engines, refused } = this.manifest;
    const { title, module } = ENGINES[name];
    if (!engines[name]) throw new RlxError(`the folder has no ${title}: ${refused[name] ?? "it was left out"}`);
    const adapter = name === "webgpu" && !device ? await adapterFor(isFree && engines.wasm) : null;
    const { open } = await module().catch((cause) => {
      throw new FolderError(`${name}.js cannot be imported: ${cause.message}`, { cause });
    });
    this.runtime = await open(this, adapter, device);
    this.engine = name;
    this.adapter = this.runtime.adapter;
  }

  // -- calls

  /** One after the other, whatever becomes of them. */
  queued(work) {
    const made = this.tail.then(() => {
      if (this.isDisposed) throw new RlxError("the model was disposed of. Load it again.");
      return work();
    });
    const done = () => undefined;
    this.tail = made.then(done, done);
    return made;
  }

  /** The outputs by name: typed arrays, or what stays on the GPU with `keep`. */
  run(inputs, options = {}) {
    return this.queued(async () => {
      await this.revived();
      const { given, sizes } = this.bind(inputs);
      return this.runtime.run(given, sizes, options);
    });
  }

  /** The time of a call, and of each of its kernels where they can be timed. */
  profile(inputs) {
    return this.queued(async () => {
      await this.revived();
      const { given, sizes } = this.bind(inputs);
      return this.runtime.profile(given, sizes);
    });
  }

  /** Loaded again, if its device was lost or could not be opened again. */
  async revived() {
    const loss = this.runtime ? this.runtime.loss() : new RlxError("nothing is loaded. Call model.reload().");
    if (!loss) return;
    if (this.options.reload === false || (this.runtime && !this.runtime.isOwn)) throw loss;
    await this.open();
  }

  bind(inputs) {
    const declared = this.inputs;
    const { names, weightSizes } = this.manifest;
    const known = declared.map((d) => d.name);
    const extra = Object.keys(inputs).find((n) => !known.includes(n));
    if (extra !== undefined) throw new RlxError(`there is no input "${extra}"; there are: ${known.join(", ")}.`);
    const given = declared.map((d) => described(inputs[d.name], d.name, d.dtype));
    const range = (name) => names[name] ?? [0, null];
    let sizes = bindSizes(declared, given.map((g) => g.dims), weightSizes, range);
    given.forEach((g, i) => {
      const { name, shape, dims, dtype } = declared[i];
      const bytes = g.data ? g.data.byteLength : g.buffer.size - g.offset;
      if (!g.dims) {
        const open = dims.filter((d) => unknownIn(d, sizes).size);
        const known = product(dims.filter((d) => !open.includes(d)).map((d) => evaluate(d, sizes)));
        if (open.length > 1)
          throw new RlxError(`input "${name}" is ${shape}: give {data, dims}.`);
        g.dims = dims.map((d) => (open.includes(d) ? bytes / itemsize(dtype) / known : evaluate(d, sizes)));
        sizes = bindSizes([declared[i]], [g.dims], sizes, range);
      }
      g.bytes = product(g.dims) * itemsize(dtype);
      if (g.data ? bytes !== g.bytes : bytes < g.bytes)
        throw new RlxError(`input "${name}" is ${shape}: ${g.bytes} bytes, got ${bytes}.`);
    });
    return { given, sizes };
  }

  /** Free all memory of the engine, once the call that runs is done. */
  dispose() {
    const done = this.tail.then(() => this.runtime?.destroy());
    this.isDisposed = true;
    return done;
  }
}

/** The model of a folder: its address, or its files by name. */
async function load(folder = "./", options = {}) {
  const manifest = await (await file(folder, "model.json")).json();
  if (manifest.format !== FORMAT)
    throw new RlxError(`model.json has format ${manifest.format}, and this rlx.js reads ${FORMAT}. Export it again.`);
  const model = new Model(manifest, folder, options);
  await model.reload();
  return model;
}

export { Model, RlxError, evaluate, load };
