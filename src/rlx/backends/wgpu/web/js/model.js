/**
 * Runs a folder that `rlx compile model.onnx -t wgpu --web folder/` wrote, on WebGPU.
 *
 *     import { load } from "./rlx.js";
 *     const model = await load("./");
 *     const { y } = await model.run({ x });
 *
 * The plan is routines of steps: launches of kernels on buffers at offsets that are formulas of the
 * named dims, copies, and control flow. Memory of calls is one GPU buffer, the arena; weights are
 * others. What launches in a row need (pipelines, bind groups, params) is recorded once for each set
 * of sizes and replayed from then on, so that a call on known sizes allocates nothing on the GPU.
 */

import { DTYPES, described, itemsize, product, roundUp, words } from "./arrays.js";
import { Call, Outgrown, SPACE, encode } from "./call.js";
import { ARENA, Gpu } from "./device.js";
import { RlxError, bindSizes, evaluate, unknownIn } from "./sizes.js";
import { chunksOf, file } from "./weights.js";

const FORMAT = 1;
const FIRST_CAPACITY = 256;
const GROWTH = 128; // of a capacity at once
const MAX_STAMPED = 2048; // kernels of a call that are timed
const SOFTWARE = /swiftshader|llvmpipe|lavapipe|warp|basic render/i;

/** A device with all that the adapter has of what is used. */
async function open(given) {
  if (given) return new Gpu(given, given.adapterInfo ?? {}, false);
  const gpu = globalThis.navigator?.gpu;
  if (!gpu)
    throw new RlxError("there is no WebGPU: not in this browser, or not for a page without https.");
  const adapter = await gpu.requestAdapter({ powerPreference: "high-performance" });
  if (!adapter) throw new RlxError("WebGPU finds no adapter: the GPU or its driver is unsupported.");
  const { maxBufferSize, maxStorageBufferBindingSize, maxStorageBuffersPerShaderStage } = adapter.limits;
  /** @type {GPUFeatureName[]} */
  const wanted = ["shader-f16", "timestamp-query"];
  const requiredFeatures = wanted.filter((f) => adapter.features.has(f));
  const requiredLimits = { maxBufferSize, maxStorageBufferBindingSize, maxStorageBuffersPerShaderStage };
  const device = await adapter.requestDevice({ requiredFeatures, requiredLimits });
  return new Gpu(device, adapter.info, true);
}

/** Is the adapter the host's processor? Schedules are others then. */
const isSoftware = ({ architecture = "", description = "", isFallbackAdapter = false }) =>
  isFallbackAdapter || SOFTWARE.test(`${architecture} ${description}`);

/** A loaded model. Calls run one after the other. */
class Model {
  constructor(manifest, folder, options) {
    this.manifest = manifest;
    this.folder = folder;
    this.options = options;
    /** @type {Gpu | any} */
    this.gpu = null;
    /** @type {any} */
    this.plan = null;
    this.params = [];
    this.loadMs = 0;
    this.engine = "webgpu";
    this.inputs = manifest.inputs;
    this.outputs = manifest.outputs;
    this.capacities = {};
    this.tail = Promise.resolve();
    this.isDisposed = false;
  }

  /** What runs it, in words. */
  get adapter() {
    const { vendor, architecture, description } = this.gpu.info;
    return [vendor, architecture, description].filter(Boolean).join(" ") || "unnamed";
  }

  /** Open a device again and load all that calls need, as after a device was lost. */
  reload(device = this.options.device) {
    return this.queued(() => this.open(device));
  }

  async open(device) {
    const start = performance.now();
    this.gpu?.destroy();
    const gpu = (this.gpu = await open(device));
    const { plans } = this.manifest;
    const kind = this.options.plan ?? (isSoftware(gpu.info) && plans.software ? "software" : "gpu");
    if (!plans[kind]) throw new RlxError(`there is no plan ${kind}, only ${Object.keys(plans).join(", ")}.`);
    const plan = (this.plan = await (await file(this.folder, plans[kind])).json());
    const missing = plan.features.find((f) => !gpu.device.features.has(f));
    if (missing) throw new RlxError(`the model uses ${missing}, which the adapter has not. Export it without.`);
    this.capacities = Object.fromEntries(plan.capacities.map((n) => [n, FIRST_CAPACITY]));
    this.params = plan.params.map(([slab, at]) => SPACE * (1 + slab) + at);
    await this.explained(async () => {
      await gpu.guarded("the weights", () =>
        plan.slabs.forEach(({ bytes }, i) => (gpu.buffers[1 + i] = gpu.storage(bytes, "the weights"))),
      );
      await gpu.guarded("the kernels", () => Promise.all([this.compiled(), this.upload(gpu)]));
      await this.settled(await this.prologue(), []);
    });
    gpu.trim(0);
    plan.slabs.forEach(({ isKept }, i) => isKept || gpu.buffers[1 + i].destroy());
    this.loadMs = performance.now() - start;
  }

  async upload(gpu) {
    const { weights } = this.manifest;
    const { entries } = this.plan;
    const tell = (loaded) => this.options.onProgress?.({ loaded, total: weights.bytes });
    tell(0);
    let start = 0;
    for await (const chunk of chunksOf(weights, this.folder)) {
      const end = start + chunk.length;
      for (const [slab, at, offset, bytes] of entries) {
        const [from, to] = [Math.max(start, offset), Math.min(end, offset + roundUp(bytes, 4))];
        if (from < to)
          gpu.device.queue.writeBuffer(gpu.buffers[1 + slab], at + from - offset, chunk, from - start, to - from);
      }
      start = end;
      tell(start);
    }
  }

  /** Pipelines of the prologue, and of calls at usual sizes: all at once, while weights are loaded. */
  async compiled() {
    const { weightSizes, usualSizes } = this.plan;
    const asked = [];
    await this.prologue(asked);
    if (usualSizes) {
      const sizes = { ...this.capacities, ...weightSizes, ...usualSizes };
      const bytes = this.inputs.map(({ dtype, dims }) => product(dims.map((d) => evaluate(d, sizes))) * itemsize(dtype));
      const { call, externals } = await this.begun(bytes, sizes, null);
      call.asked = asked;
      await call.run(this.plan.main, externals);
    }
    await Promise.all(asked);
  }

  /** What follows from weights alone; those that nothing else reads can be freed then. */
  async prologue(asked = null) {
    const { plan } = this;
    const call = new Call(this.gpu, plan, { ...this.capacities, ...plan.weightSizes }, plan.tables.end);
    call.asked = asked;
    await call.reserve(plan.tables.end);
    const none = (leaves) => leaves.map(() => 0);
    await call.prepare(plan.main, [...none(this.inputs), ...this.params, ...none(this.outputs)]);
    return call;
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
      if (this.gpu.lost) {
        if (this.options.reload === false || !this.gpu.isOwn) throw this.loss();
        await this.open();
      }
      return this.explained(() => this.call(inputs, options));
    });
  }

  /** The time of a call, and of each of its kernels where the device has timestamps. */
  profile(inputs) {
    return this.queued(() => this.explained(() => this.profiled(inputs)));
  }

  loss() {
    const { reason, message } = this.gpu.lost;
    return new RlxError(
      `the GPU device was lost (${reason}): ${message || "no message"}. Call model.reload().`,
      { reason: `device lost: ${reason}` },
    );
  }

  /** An error of the device as one of ours; one that follows from its loss is that. */
  async explained(work) {
    try {
      return await work();
    } catch (cause) {
      const { gpu } = this;
      await Promise.race([gpu.device.lost, new Promise((done) => setTimeout(done, 20))]);
      if (gpu.lost) throw this.loss();
      throw cause instanceof RlxError ? cause : new RlxError(`the GPU failed: ${cause.message}`, { cause });
    }
  }

  bind(inputs) {
    const declared = this.inputs;
    const names = declared.map((d) => d.name);
    const extra = Object.keys(inputs).find((n) => !names.includes(n));
    if (extra !== undefined) throw new RlxError(`there is no input "${extra}"; there are: ${names.join(", ")}.`);
    const given = declared.map((d) => described(inputs[d.name], d.name, d.dtype));
    const range = (name) => this.manifest.names[name] ?? [0, null];
    let sizes = bindSizes(declared, given.map((g) => g.dims), this.plan.weightSizes, range);
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

  async call(inputs, options, watch = null) {
    const { given, sizes } = this.bind(inputs);
    for (;;) {
      try {
        return await this.attempt(given, { ...this.capacities, ...sizes }, options, watch);
      } catch (error) {
        if (!(error instanceof Outgrown)) throw error;
        for (const [n, c] of Object.entries(error.capacities))
          this.capacities[n] = Math.min(c, this.capacities[n] * GROWTH);
        this.clearFailures();
      }
    }
  }

  clearFailures() {
    const { tables, failures } = this.plan;
    const zeros = new Uint32Array(failures.length);
    this.gpu.device.queue.writeBuffer(this.gpu.buffers[ARENA], tables.failures, zeros);
  }

  /** A call whose inputs have so many bytes. The arena has tables, inputs, outputs, then frames. */
  async begun(bytes, sizes, watch) {
    const { plan, gpu } = this;
    const main = plan.routines[plan.main];
    let top = plan.tables.end;
    const room = (size) => {
      const address = top;
      top += roundUp(Math.max(size, 1));
      return address;
    };
    const taken = bytes.map(room);
    const made = main.outputs.map((size) => room(evaluate(size, sizes)));
    const call = new Call(gpu, plan, sizes, top, watch);
    await call.reserve(top + Math.max(...main.frame.map((f) => evaluate(f, sizes))));
    return { call, taken, made, externals: [...taken, ...this.params, ...made] };
  }

  async attempt(given, sizes, options, watch) {
    const bytes = given.map((g) => g.bytes);
    const { call, taken, made, externals } = await this.begun(bytes, sizes, watch);
    const { device, buffers } = this.gpu;
    given.forEach(({ data, buffer, offset }, i) => {
      if (data && bytes[i]) device.queue.writeBuffer(buffers[ARENA], taken[i], words(data));
      if (buffer && bytes[i])
        call.commands().copyBufferToBuffer(buffer, offset, buffers[ARENA], taken[i], roundUp(bytes[i], 4));
    });
    await call.run(this.plan.main, externals);
    return this.results(call, made, options);
  }

  /** @param {Call} call @param {number[]} made @param {{keep?: boolean | string[]}} options */
  async results(call, made, { keep }) {
    const { gpu } = this;
    const results = {};
    const read = [];
    for (const [i, { name, dtype, dims: declared }] of this.outputs.entries()) {
      const dims = declared.map((d) => call.int(d));
      const bytes = product(dims) * itemsize(dtype);
      results[name] = null; // in the order of the model's outputs
      if (keep !== true && !(keep || []).includes(name)) {
        read.push({ name, dtype, dims, range: [made[i], bytes] });
        continue;
      }
      const buffer = await gpu.guarded(name, () => gpu.storage(bytes, name));
      if (bytes) call.commands().copyBufferToBuffer(gpu.buffers[ARENA], made[i], buffer, 0, roundUp(bytes, 4));
      results[name] = { buffer, offset: 0, dims, dtype, destroy: () => buffer.destroy() };
    }
    const arrays = await this.settled(call, read.map((r) => r.range));
    read.forEach(({ name, dtype, dims }, i) => {
      const array = new DTYPES[dtype][1](arrays[i].buffer);
      results[name] = Object.defineProperty(array, "dims", { value: dims });
    });
    return results;
  }

  /** Bytes of ranges, when all is done and no kernel has noted a failure. */
  async settled(call, ranges) {
    const { tables, failures } = this.plan;
    const [noted, ...found] = await call.read([[tables.failures, 4 * failures.length], ...ranges]);
    const codes = new Int32Array(noted.buffer);
    const row = codes.findIndex((code) => code !== 0);
    if (row < 0) return found;
    this.clearFailures();
    const [node, texts] = failures[row];
    const reason = texts[codes[row] - 1] ?? "it failed";
    throw new RlxError(`${node}: ${reason}`, { node, reason });
  }

  async profiled(inputs) {
    const { device } = this.gpu;
    await this.call(inputs, {});
    const start = performance.now();
    await this.call(inputs, {});
    const wallMs = performance.now() - start;
    const set =
      device.features.has("timestamp-query") &&
      device.createQuerySet({ type: "timestamp", count: 2 * MAX_STAMPED });
    const ops = [];
    await this.call(inputs, {}, (op) => {
      const [first, last] = [2 * ops.length, 2 * ops.length + 1];
      const stamps = { querySet: set, beginningOfPassWriteIndex: first, endOfPassWriteIndex: last };
      const isStamped = set && ops.push(op) <= MAX_STAMPED;
      const encoder = device.createCommandEncoder();
      const pass = encoder.beginComputePass(isStamped ? { timestampWrites: stamps } : {});
      encode(pass, op);
      pass.end();
      device.queue.submit([encoder.finish()]);
    });
    const times = set ? await this.stamps(set, Math.min(ops.length, MAX_STAMPED)) : [];
    const kernels = times.map((us, i) => ({ node: ops[i].node, kernel: ops[i].kernel, us }));
    return { wallMs, kernels };
  }

  /** Microseconds between pairs of timestamps. */
  async stamps(set, count) {
    const { device } = this.gpu;
    const { QUERY_RESOLVE, COPY_SRC, COPY_DST, MAP_READ } = GPUBufferUsage;
    const size = 16 * Math.max(1, count);
    const [resolved, read] = [QUERY_RESOLVE | COPY_SRC, COPY_DST | MAP_READ].map((usage) =>
      device.createBuffer({ size, usage }),
    );
    const encoder = device.createCommandEncoder();
    encoder.resolveQuerySet(set, 0, 2 * count, resolved, 0);
    encoder.copyBufferToBuffer(resolved, 0, read, 0, size);
    device.queue.submit([encoder.finish()]);
    await read.mapAsync(GPUMapMode.READ);
    const ns = new BigInt64Array(read.getMappedRange().slice(0));
    [set, resolved, read].forEach((held) => held.destroy());
    return Array.from({ length: count }, (_, i) => Number(ns[2 * i + 1] - ns[2 * i]) / 1e3);
  }

  /** Free all memory on the GPU, once the call that runs is done. */
  dispose() {
    const done = this.tail.then(() => this.gpu?.destroy());
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
