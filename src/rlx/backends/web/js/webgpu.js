/** The engine on WebGPU.
 *
 * The plan is routines of steps: launches of kernels on buffers at offsets that are formulas of the
 * named dims, copies, and control flow. Memory of calls is one GPU buffer, the arena; weights are
 * others. What launches in a row need (pipelines, bind groups, params) is recorded once for each set
 * of sizes and replayed from then on, so that a call on known sizes allocates nothing on the GPU.
 */

import { isSoftware, named } from "./adapter.js";
import { DTYPES, itemsize, product, roundUp, words } from "./arrays.js";
import { Call, Outgrown, SPACE, encode } from "./call.js";
import { ARENA, Gpu } from "./device.js";
import { RlxError, evaluate } from "./sizes.js";
import { file, upload } from "./weights.js";

const FIRST_CAPACITY = 256;
const GROWTH = 128; // of a capacity at once
const MAX_STAMPED = 2048; // kernels of a call that are timed

/** A device with all that the adapter has of what is used. */
async function requested(adapter) {
  const { maxBufferSize, maxStorageBufferBindingSize, maxStorageBuffersPerShaderStage } = adapter.limits;
  /** @type {GPUFeatureName[]} */
  const wanted = ["shader-f16", "timestamp-query"];
  const requiredFeatures = wanted.filter((f) => adapter.features.has(f));
  const requiredLimits = { maxBufferSize, maxStorageBufferBindingSize, maxStorageBuffersPerShaderStage };
  const device = await adapter.requestDevice({ requiredFeatures, requiredLimits }).catch((cause) => {
    throw new RlxError(`WebGPU gives no device: ${cause.message}`, { cause });
  });
  return new Gpu(device, adapter.info, true);
}

class WebGpu {
  constructor(model, gpu, plan) {
    this.model = model;
    this.gpu = gpu;
    this.plan = plan;
    this.isOwn = gpu.isOwn;
    this.adapter = named(gpu.info);
    this.inputs = model.inputs;
    this.outputs = model.outputs;
    this.weightSizes = model.manifest.weightSizes;
    this.capacities = Object.fromEntries(plan.capacities.map((n) => [n, FIRST_CAPACITY]));
    this.params = plan.params.map(([slab, at]) => SPACE * (1 + slab) + at);
  }

  /** Weights, pipelines, and what follows from weights alone. */
  load() {
    const { gpu, plan } = this;
    return this.explained(async () => {
      await gpu.guarded("the weights", () =>
        plan.slabs.forEach(({ bytes }, i) => (gpu.buffers[1 + i] = gpu.storage(bytes, "the weights"))),
      );
      await gpu.guarded("the kernels", () => Promise.all([this.compiled(), this.uploaded()]));
      await this.settled(await this.prologue(), []);
      gpu.trim(0);
      plan.slabs.forEach(({ isKept }, i) => isKept || gpu.buffers[1 + i].destroy());
    });
  }

  uploaded() {
    const { queue } = this.gpu.device;
    return upload(this.model, this.plan.entries, ([slab, at], before, part) =>
      queue.writeBuffer(this.gpu.buffers[1 + slab], at + before, part),
    );
  }

  /** Pipelines of the prologue, and of calls at usual sizes: all at once, while weights are loaded. */
  async compiled() {
    const { weightSizes, plan: { usualSizes } } = this;
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
    const call = new Call(this.gpu, plan, { ...this.capacities, ...this.weightSizes }, plan.tables.end);
    call.asked = asked;
    await call.reserve(plan.tables.end);
    const none = (leaves) => leaves.map(() => 0);
    await call.prepare(plan.main, [...none(this.inputs), ...this.params, ...none(this.outputs)]);
    return call;
  }

  // -- calls

  run(given, sizes, options) {
    return this.explained(() => this.call(given, sizes, options));
  }

  /** The time of a call, and of each of its kernels where the device has timestamps. */
  profile(given, sizes) {
    return this.explained(() => this.profiled(given, sizes));
  }

  /** Why calls fail from now on, if the device is gone. */
  loss() {
    if (!this.gpu.lost) return null;
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

  /** Capacities that a call had to grow stay so, if there was memory for them. */
  async call(given, sizes, options, watch = null) {
    const capacities = { ...this.capacities };
    for (;;) {
      try {
        const made = await this.attempt(given, { ...capacities, ...sizes }, options, watch);
        this.capacities = capacities;
        return made;
      } catch (error) {
        if (!(error instanceof Outgrown)) throw error;
        for (const [n, c] of Object.entries(error.capacities)) capacities[n] = Math.min(c, capacities[n] * GROWTH);
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

  async profiled(given, sizes) {
    const { device } = this.gpu;
    await this.call(given, sizes, {});
    const start = performance.now();
    await this.call(given, sizes, {});
    const wallMs = performance.now() - start;
    const set =
      device.features.has("timestamp-query") &&
      device.createQuerySet({ type: "timestamp", count: 2 * MAX_STAMPED });
    const ops = [];
    await this.call(given, sizes, {}, (op) => {
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

  destroy() {
    this.gpu.destroy();
  }
}

/** The model on the device given, or on a new one of the adapter. */
async function open(model, adapter, device) {
  const gpu = device ? new Gpu(device, device.adapterInfo ?? {}, false) : await requested(adapter);
  try {
    const made = new WebGpu(model, gpu, await planFor(model, gpu));
    await made.load();
    return made;
  } catch (error) {
    gpu.destroy();
    throw error;
  }
}

async function planFor({ manifest, folder, options }, gpu) {
  const { plans } = manifest.engines.webgpu;
  const kind = options.plan ?? (isSoftware(gpu.info) && plans.software ? "software" : "gpu");
  if (!plans[kind]) throw new RlxError(`there is no plan ${kind}, only ${Object.keys(plans).join(", ")}.`);
  const plan = await (await file(folder, plans[kind])).json();
  const missing = plan.features.find((f) => !gpu.device.features.has(f));
  if (missing) throw new RlxError(`the model uses ${missing}, which the adapter has not. Export it without.`);
  return plan;
}

export { open };
