/** Runs programs for tests: one line of JSON in, one out, as tests/backend/wasm/engine.py writes and
 * reads them. It follows the plan's memory and the call context, and shares nothing with the runtime
 * of pages. */

import { readFileSync, writeFileSync } from "node:fs";
import { createInterface } from "node:readline";

const ALIGN = 64, PAGE = 65536, GROWTH = 128;
const up = (n) => Math.ceil(n / ALIGN) * ALIGN;
const programs = new Map();

class Program {
  constructor(plan, module, weights) {
    this.plan = plan;
    this.exports = new WebAssembly.Instance(module).exports;
    this.end = this.exports.__heap_base.value;
    this.context = this.take(8 * plan.context.words);
    this.symbols = this.take(8 * (plan.symbols.length + 1));
    this.needs = this.take(8 * plan.numNeeds);
    this.externals = this.take(4 * (plan.numInputs + plan.params.length + plan.numOutputs + 1));
    this.sizes = new Map(plan.symbols.map((s) => [s, 0]));
    plan.capacities.forEach((c) => this.sizes.set(c, plan.firstCapacity));
    Object.entries(plan.weightSizes).forEach(([n, size]) => this.sizes.set(n, size));
    this.load(weights);
  }

  get view() { return new DataView(this.exports.memory.buffer); }
  get bytes() { return new Uint8Array(this.exports.memory.buffer); }

  take(size) {
    const at = this.end;
    this.end = up(at + size);
    this.grow();
    return at;
  }

  grow() {
    const missing = Math.ceil((this.end - this.exports.memory.buffer.byteLength) / PAGE);
    if (missing > 0) this.exports.memory.grow(missing);
  }

  word(name, value) { this.view.setBigInt64(this.context + 8 * this.plan.context[name], BigInt(value), true); }

  run(mode) {
    this.word("MODE", this.plan.modes[mode]);
    this.word("SYMBOLS", this.symbols);
    this.word("NEEDS", this.needs);
    this.word("EXTERNALS", this.externals);
    this.word("WEIGHTS", this.weights);
    return this.exports.call(this.context);
  }

  putSizes() {
    this.plan.symbols.forEach((s, i) => this.view.setBigInt64(this.symbols + 8 * i, BigInt(this.sizes.get(s)), true));
  }

  need(i) { return Number(this.view.getBigInt64(this.needs + 8 * i, true)); }

  load(file) {
    const plan = this.plan;
    this.weights = this.take(plan.weightBytes);
    for (const [at, from, count] of plan.entries) this.bytes.set(file.subarray(from, from + count), this.weights + at);
    this.putSizes();
    this.run("NEED");
    this.word("ARENA", this.take(this.need(0)));
    plan.params.forEach((at, i) => this.view.setUint32(this.externals + 4 * (plan.numInputs + i), this.weights + at, true));
    const code = this.run("PROLOGUE");
    if (code) throw new Error(`prologue: ${this.failure(code)}`);
    this.free = this.weights + up(plan.weightBytes);
  }

  failure(code) {
    const failed = this.view.getBigInt64(this.context + 8 * this.plan.context.FAILED, true);
    const [label, texts] = this.plan.failures[Number(failed >> 32n)] ?? ["?", []];
    const number = Number(failed & 0xffffffffn) || code;
    return `${label}: ${texts[number - 1] ?? "it failed"}`;
  }

  /** Outputs as [dims, bytes]. */
  call(sizes, inputs) {
    Object.entries(sizes).forEach(([n, size]) => this.sizes.set(n, size));
    for (;;) {
      const code = this.attempt(inputs);
      if (!code) return this.outputs();
      const text = this.failure(code);
      if (!text.endsWith(this.plan.capacityExceeded) || !this.outgrow()) throw new Error(text);
    }
  }

  attempt(inputs) {
    const plan = this.plan, dims = plan.outputRanks;
    this.putSizes();
    this.run("NEED");
    if (this.need(plan.numNeeds - 1)) throw new Error("out of range");
    this.end = this.free;
    const places = inputs.map((raw) => this.take(raw.length));
    places.forEach((at, i) => { this.bytes.set(inputs[i], at); this.view.setUint32(this.externals + 4 * i, at, true); });
    let at = 2;
    this.outs = dims.map((rank, i) => {
      const place = this.take(this.need(at));
      this.bytes.fill(1, place, place + this.need(at));
      this.view.setUint32(this.externals + 4 * (plan.numInputs + plan.params.length + i), place, true);
      at += 1 + rank;
      return place;
    });
    const arena = this.need(0);
    this.word("ARENA", this.take(arena));
    return this.run("CALL");
  }

  outgrow() {
    let grew = false;
    for (const name of this.plan.capacities) {
      const found = Number(this.view.getBigInt64(this.symbols + 8 * this.plan.symbols.indexOf(name.replace(/\.capacity$/, "")), true));
      const now = this.sizes.get(name);
      if (found <= now) continue;
      grew = true;
      this.sizes.set(name, Math.min(2 ** Math.ceil(Math.log2(Math.max(found, 2 * now))), GROWTH * now));
    }
    return grew;
  }

  outputs() {
    let at = 2;
    return this.plan.outputRanks.map((rank, i) => {
      const dims = Array.from({ length: rank }, (_, d) => this.need(at + 1 + d));
      at += 1 + rank;
      const size = dims.reduce((a, b) => a * b, this.plan.outputItems[i]);
      return [dims, this.bytes.slice(this.outs[i], this.outs[i] + size)];
    });
  }
}

function answer(asked) {
  if (asked.load) {
    const { plan, module, weights } = asked.load;
    programs.set(asked.id, new Program(plan, new WebAssembly.Module(readFileSync(module)), readFileSync(weights)));
    return {};
  }
  if (asked.drop) return { dropped: programs.delete(asked.id) };
  const program = programs.get(asked.id), file = readFileSync(asked.inputs);
  const given = asked.spans.map(([from, size]) => file.subarray(from, from + size));
  const made = program.call(asked.sizes, given);
  const timed = asked.repeats ? time(program, given, asked.repeats) : [];
  writeFileSync(asked.outputs, Buffer.concat(made.map(([, raw]) => raw)));
  return { dims: made.map(([dims]) => dims), times: timed };
}

function time(program, given, repeats) {
  return Array.from({ length: repeats }, () => {
    const start = performance.now();
    program.run("CALL");
    return performance.now() - start;
  });
}

for await (const line of createInterface({ input: process.stdin })) {
  let said;
  try { said = answer(JSON.parse(line)); } catch (error) { said = { error: String(error.stack ?? error) }; }
  process.stdout.write(`${JSON.stringify(said)}\n`);
}
