/** The engine on WebAssembly: one thread, vectors of 128 bits.
 *
 * The program is native code of the CPU backend, which runs control flow itself and asks for nothing.
 * Of its linear memory, what is behind `__heap_base` belongs to the page: tables of the call's
 * context, the weights and what follows from them, then inputs, outputs and arena of a call. Memory
 * grows when sizes do, and a call on the sizes of the one before asks for none.
 */

import { DTYPES, itemsize, product, roundUp } from "./arrays.js";
import { RlxError } from "./sizes.js";
import { file, upload, verified } from "./weights.js";

const LINE = 64; // to which all blocks are aligned
const PAGE = 65536;
const MOST_BYTES = 2 ** 32; // that an address of 32 bits reaches
const GROWTH = 128; // of a capacity at once
const CAPACITY = ".capacity";
/** Modules of one vector instruction each, by the feature that it belongs to. */
const probe = (...body) =>
  Uint8Array.of(0, 97, 115, 109, 1, 0, 0, 0, 1, 5, 1, 96, 0, 1, 123, 3, 2, 1, 0, 10, body.length + 4, 1, body.length + 2, 0, ...body, 11);
const zero = [65, 0, 253, 15]; // i32.const 0, i8x16.splat
const PROBES = {
  simd: probe(...zero),
  relaxed: probe(...zero, ...zero, ...zero, 253, 133, 2), // f32x4.relaxed_madd
};
const TEXTS = { simd: "128-bit SIMD", relaxed: "128-bit relaxed SIMD" };

class Wasm {
  /** @param {any} model @param {any} plan @param {any} exports @param {string} kind of the module */
  constructor(model, plan, { memory, __heap_base, call }, kind) {
    this.model = model;
    this.plan = plan;
    this.memory = memory;
    this.native = call;
    this.isOwn = true;
    this.adapter = `${TEXTS[kind]}, one thread`;
    this.inputs = model.inputs;
    this.outputs = model.outputs;
    this.capacities = Object.fromEntries(plan.capacities.map((n) => [n, plan.firstCapacity]));
    this.failure = null; // after which nothing can be called any more
    this.key = ""; // the sizes that `layout` is for
    /** @type {any} */
    this.layout = null;
    let top = roundUp(__heap_base.value, LINE);
    const room = (bytes) => {
      const address = top;
      top = roundUp(top + bytes, LINE);
      return address;
    };
    this.context = room(8 * plan.context.words);
    this.symbols = room(8 * (plan.symbols.length + 1));
    this.needs = room(8 * plan.numNeeds);
    this.externals = room(4 * (this.inputs.length + plan.params.length + this.outputs.length));
    this.weights = this.free = top; // where they are, and what is behind them
  }

  // -- memory

  /** Linear memory up to a byte. */
  reserve(end, what) {
    const missing = end - this.memory.buffer.byteLength;
    if (end > MOST_BYTES) throw this.beyond(what, end);
    if (missing > 0)
      try {
        this.memory.grow(Math.ceil(missing / PAGE));
      } catch (cause) {
        throw new RlxError(`${what}: the browser has no ${end} bytes of memory for the model. Run it at smaller sizes.`, { cause });
      }
    if (this.bytes?.buffer === this.memory.buffer) return;
    this.bytes = new Uint8Array(this.memory.buffer);
    this.words = new Uint32Array(this.memory.buffer);
    this.longs = new BigInt64Array(this.memory.buffer);
  }

  beyond(what, bytes) {
    const reason = `it needs ${bytes} bytes of memory, and WebAssembly has at most ${MOST_BYTES}`;
    return new RlxError(`${what}: ${reason}. Run it at smaller sizes.`, { node: what, reason });
  }

  long(address) {
    return Number(this.longs[address / 8]);
  }

  setLongs(address, values) {
    values.forEach((v, i) => (this.longs[address / 8 + i] = BigInt(v)));
  }

  setAddresses(inputs, outputs) {
    const params = this.plan.params.map((at) => this.weights + at);
    this.words.set([...inputs, ...params, ...outputs], this.externals / 4);
  }

  // -- the program

  /** Run in a mode: null, or the step that failed and why. @param {string} mode
   * @param {number} arena @returns {[string, string] | null} */
  invoke(mode, arena) {
    const { context, modes, failures } = this.plan;
    this.longs.fill(0n, this.context / 8, this.context / 8 + context.words);
    const words = { SYMBOLS: this.symbols, NEEDS: this.needs, EXTERNALS: this.externals, WEIGHTS: this.weights };
    for (const [word, value] of Object.entries({ ...words, MODE: modes[mode], ARENA: arena }))
      this.longs[this.context / 8 + context[word]] = BigInt(value);
    let code = 0;
    try {
      code = this.native(this.context);
    } catch (cause) {
      this.failure = new RlxError(`the program of ${this.model.manifest.name} broke off, a defect of rlx: ${cause.message}`, { cause });
      throw this.failure;
    }
    if (!code) return null;
    const failed = (this.context + 8 * context.FAILED) / 4;
    const [node, texts] = failures[this.words[failed + 1]] ?? ["the program", []];
    return [node, texts[(this.words[failed] || code) - 1] ?? "it failed"];
  }

  /** The sizes of named dims in their table; those that nobody knows yet are 0. */
  setSizes(all) {
    this.setLongs(this.symbols, [...this.plan.symbols.map((n) => all[n] ?? 0), 0]);
  }

  async load() {
    const { plan } = this;
    const { name } = this.model.manifest;
    this.reserve(this.weights + plan.weightBytes, name);
    await upload(this.model, plan.entries, ([at], before, part) => this.bytes.set(part, this.weights + at + before));
    this.setSizes({ ...this.capacities, ...plan.weightSizes });
    this.setAddresses(this.inputs.map(() => 0), this.outputs.map(() => 0));
    this.must("NEED", 0);
    this.free = this.weights + roundUp(plan.weightBytes, LINE);
    this.reserve(this.free + this.long(this.needs), name);
    this.must("PROLOGUE", this.free);
  }

  failed([node, reason]) {
    return new RlxError(`${node}: ${reason}`, { node, reason });
  }

  must(mode, arena) {
    const failed = this.invoke(mode, arena);
    if (failed) throw this.failed(failed);
  }

  // -- calls

  /** Where inputs, outputs and the arena of a call are, as it was for the same sizes before. */
  laidOut(given, sizes) {
    const key = JSON.stringify(sizes);
    this.setSizes(sizes);
    if (this.key === key) return this.layout;
    this.must("NEED", 0);
    if (this.long(this.needs + 8 * (this.plan.numNeeds - 1))) throw new RlxError("a named dim is out of its range.");
    let at = this.needs + 16; // behind the bytes of arena and weights
    let top = this.free;
    const room = (bytes) => {
      const address = top;
      top = roundUp(top + Math.max(bytes, 1), LINE);
      return address;
    };
    const taken = given.map((g) => room(g.bytes));
    const made = this.outputs.map(({ dims }) => {
      const address = room(this.long(at));
      const dimsAt = at + 8;
      at += 8 * (1 + dims.length);
      return { address, dimsAt };
    });
    const arena = top;
    this.reserve(arena + this.long(this.needs), this.model.manifest.name);
    this.setAddresses(taken, made.map((m) => m.address));
    this.layout = { taken, made, arena };
    this.key = key;
    return this.layout;
  }

  /** @param {any[]} given @param {Record<string, number>} sizes
   * @param {{keep?: boolean | string[]}} options */
  async run(given, sizes, { keep }) {
    if (keep && keep !== true ? keep.length : keep) throw this.apart("outputs stay on the GPU (`keep`)");
    given.forEach((g, i) => {
      if (!g.data) throw this.apart(`input "${this.inputs[i].name}" is on the GPU`);
    });
    return this.results(this.called(given, sizes));
  }

  apart(what) {
    return new RlxError(`${what}, and the model runs on WebAssembly: ${this.model.why}. Use arrays.`);
  }

  /** Capacities that a call had to grow stay so, if there was memory for them. */
  called(given, sizes) {
    for (let capacities = this.capacities; ; ) {
      const { taken, made, arena } = this.laidOut(given, { ...capacities, ...sizes });
      given.forEach(({ data }, i) => this.bytes.set(new Uint8Array(data.buffer, data.byteOffset, data.byteLength), taken[i]));
      const failed = this.invoke("CALL", arena);
      if (!failed) {
        this.capacities = capacities;
        return made;
      }
      const more = failed[1] === this.plan.capacityExceeded ? this.outgrown(capacities) : {};
      if (!Object.keys(more).length) throw this.failed(failed);
      capacities = { ...capacities, ...more };
    }
  }

  /** Of which capacities a call has found more than they hold, and what they have to be. */
  outgrown(capacities) {
    const more = {};
    for (const [name, held] of Object.entries(capacities)) {
      const size = this.plan.symbols.indexOf(name.slice(0, -CAPACITY.length));
      const found = this.long(this.symbols + 8 * size);
      if (found > held) more[name] = Math.min(2 ** Math.ceil(Math.log2(Math.max(found, 2 * held))), GROWTH * held);
    }
    return more;
  }

  /** Copies of the outputs, whose dims a call states. */
  results(made) {
    const read = ({ name, dtype, dims: declared }, i) => {
      const { address, dimsAt } = made[i];
      const dims = declared.map((_, axis) => this.long(dimsAt + 8 * axis));
      const raw = this.memory.buffer.slice(address, address + product(dims) * itemsize(dtype));
      return [name, Object.defineProperty(new DTYPES[dtype][1](raw), "dims", { value: dims })];
    };
    return Object.fromEntries(this.outputs.map(read));
  }

  async profile(given, sizes) {
    await this.run(given, sizes, {});
    const start = performance.now();
    await this.run(given, sizes, {});
    return { wallMs: performance.now() - start, kernels: [] };
  }

  loss() {
    return this.failure;
  }

  destroy() {
    this.memory = this.native = this.bytes = this.words = this.longs = null;
  }
}

/** The module with the most instructions that the browser knows. */
function chosen(modules, wanted) {
  const kinds = ["relaxed", "simd"].filter((k) => modules[k] && WebAssembly.validate(PROBES[k]));
  const kind = wanted ?? kinds[0];
  if (kinds.includes(kind)) return kind;
  throw new RlxError(`the browser has no WebAssembly with ${TEXTS[wanted ?? "simd"]}.`);
}

async function open(model) {
  if (typeof WebAssembly === "undefined") throw new RlxError("the browser has no WebAssembly.");
  const { plan, modules } = model.manifest.engines.wasm;
  const kind = chosen(modules, model.options.simd);
  const [stated, raw] = await Promise.all([
    file(model.folder, plan).then((f) => f.json()),
    verified(model.folder, modules[kind]),
  ]);
  const { instance } = await WebAssembly.instantiate(raw).catch((cause) => {
    throw new RlxError(`the browser refuses the model's WebAssembly: ${cause.message}`, { cause });
  });
  const made = new Wasm(model, stated, instance.exports, kind);
  await made.load();
  return made;
}

export { open };
