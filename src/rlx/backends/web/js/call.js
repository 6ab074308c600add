/** One call of a plan: routines run step by step. What the device does by itself is encoded; only
 * what the host must know in between (conditions, measured sizes) is waited for. */

import { ALIGN, itemsize, product, roundUp, words } from "./arrays.js";
import { ARENA, copyText, folded, shaderText } from "./device.js";
import { RlxError, evaluate } from "./sizes.js";

const VECTOR_BYTES = 16; // the widest access of a kernel
export const SPACE = 2 ** 40; // of addresses: the GPU buffer's number times this, and the byte
const MAX_RECORDINGS = 256;
const CAPACITY = ".capacity";

/** More was found than a capacity holds. */
export class Outgrown extends Error {
  constructor(capacities) {
    super();
    this.capacities = capacities;
  }
}

export function encode(pass, { pipeline, group, x, y }) {
  pass.setPipeline(pipeline);
  pass.setBindGroup(0, group);
  pass.dispatchWorkgroups(x, y);
}

/** What a caller gives, operands first, in the order in which a routine takes it. */
function externalsOf(routine, given) {
  const count = routine.numInputs + routine.numParams;
  const inputs = given.slice(0, count).filter((_, i) => !routine.bound.includes(i));
  return [...inputs, ...routine.bound.map((i) => given[i]), ...given.slice(count)];
}

export class Call {
  /** Frames are on a stack in the arena that begins at `top`; `watch` is given each dispatch.
   * @param {import("./device.js").Gpu} gpu @param {any} plan @param {Record<string, number>} sizes
   * @param {number} top @param {((op: any) => void) | null} watch */
  constructor(gpu, plan, sizes, top, watch = null) {
    this.gpu = gpu;
    this.plan = plan;
    this.top = top;
    this.watch = watch;
    /** @type {Promise<any>[] | null} */
    this.asked = null; // where set, pipelines are asked for, and nothing is run
    /** @type {GPUCommandEncoder | null} */
    this.encoder = null;
    /** @type {GPUComputePassEncoder | null} */
    this.pass = null;
    this.begin(sizes);
  }

  begin(sizes) {
    this.sizes = sizes;
    this.key = Object.entries(sizes).join();
  }

  int(dim) {
    return typeof dim === "number" ? dim : evaluate(dim, this.sizes);
  }

  // -- commands

  /** The encoder, outside of a pass. */
  commands() {
    this.pass?.end();
    this.pass = null;
    this.encoder ??= this.gpu.device.createCommandEncoder();
    return this.encoder;
  }

  submit() {
    if (!this.encoder) return;
    this.gpu.device.queue.submit([this.commands().finish()]);
    this.encoder = null;
  }

  dispatch(op) {
    if (this.watch) {
      this.submit();
      return this.watch(op);
    }
    this.encoder ??= this.gpu.device.createCommandEncoder();
    this.pass ??= this.encoder.beginComputePass();
    encode(this.pass, op);
  }

  /** Bytes of ranges [address, size], when all before is done. */
  async read(ranges) {
    const { gpu } = this;
    let end = 0;
    const parts = ranges.map(([address, size]) => {
      const before = address % 4;
      const part = { address: address - before, at: end, before, size };
      end += size && roundUp(before + size, 8);
      return part;
    });
    if (!gpu.readback || gpu.readback.size < end) {
      gpu.readback?.destroy();
      const usage = GPUBufferUsage.MAP_READ | GPUBufferUsage.COPY_DST;
      gpu.readback = await gpu.guarded("results", () => gpu.allocate(end, usage, "results"));
    }
    for (const { address, at, before, size } of parts) {
      const source = gpu.buffers[Math.floor(address / SPACE)];
      const count = roundUp(before + size, 4);
      if (size) this.commands().copyBufferToBuffer(source, address % SPACE, gpu.readback, at, count);
    }
    this.submit();
    await gpu.readback.mapAsync(GPUMapMode.READ, 0, end || 8);
    const mapped = new Uint8Array(gpu.readback.getMappedRange(0, end || 8));
    const found = parts.map((p) => mapped.slice(p.at + p.before, p.at + p.before + p.size));
    gpu.readback.unmap();
    return found;
  }

  // -- memory

  /** An arena of at least so many bytes; what it holds stays. */
  async reserve(bytes) {
    const { gpu } = this;
    const old = gpu.buffers[ARENA];
    if (old && old.size >= bytes) return;
    const doubled = Math.min(old ? 2 * old.size : 1 << 20, gpu.limits.maxBufferSize);
    const size = Math.max(bytes, doubled);
    const made = await gpu.guarded("the arena", () => gpu.storage(size, "the arena"));
    if (old) {
      this.commands().copyBufferToBuffer(old, 0, made, 0, old.size);
      this.submit();
      old.destroy();
    }
    gpu.buffers[ARENA] = made;
    gpu.trim(0);
  }

  /** The address of a new frame; whoever asks puts `top` back. */
  async push(size) {
    const address = this.top;
    this.top += roundUp(Math.max(size, 1));
    await this.reserve(this.top);
    return address;
  }

  at([space, offset, index], frame) {
    if (space === "frame") return frame.address + this.int(offset);
    if (space === "weights") return SPACE + this.int(offset);
    if (space === "external") return frame.externals[index] + this.int(offset);
    const { sizes, failures } = this.plan.tables;
    return space === "size" ? sizes + 8 * index : failures + 4 * index;
  }

  all(places, frame) {
    return places.map((p) => this.at(p, frame));
  }

  // -- routines

  async run(name, externals) {
    const routine = this.plan.routines[name];
    await this.routine(routine, externals, routine.steps, routine.frame);
  }

  /** The prologue of a routine and of those that it calls: what follows from params alone. */
  async prepare(name, externals, done = new Set()) {
    if (done.has(name)) return;
    done.add(name);
    const { routines } = this.plan;
    const routine = routines[name];
    await this.routine(routine, externals, routine.prologue, routine.prologueFrame);
    const frame = { routine, address: 0, externals };
    for (const { bodies = [], operands } of [...routine.prologue, ...routine.steps])
      for (const body of bodies) {
        const given = operands.map((p) => (p[0] === "frame" ? 0 : this.at(p, frame)));
        given.push(...routines[body].outputs.map(() => 0));
        await this.prepare(body, externalsOf(routines[body], given), done);
      }
  }

  async routine(routine, externals, parts, sizes) {
    if (!parts.length) return;
    const mark = this.top;
    const address = await this.push(Math.max(...sizes.map((s) => this.int(s))));
    const frame = { routine, address, externals };
    for (const part of parts) {
      if (!(part.kind in STEPS)) throw new RlxError(`rlx.js knows no step ${part.kind}.`);
      await this[STEPS[part.kind]](part, frame);
    }
    this.top = mark;
  }

  called(body, given) {
    return this.run(body, externalsOf(this.plan.routines[body], given));
  }

  callRoutine({ bodies, operands, results }, frame) {
    return this.called(bodies[0], this.all([...operands, ...results], frame));
  }

  // -- segments

  async segment(segment, frame) {
    const key = `${segment.id} ${frame.address} ${frame.externals} ${this.key}`;
    await this.replay(key, () => this.launches(segment, frame));
  }

  /** What was recorded under a key, or is now. */
  async replay(key, launches) {
    const { recordings } = this.gpu;
    if (this.asked) {
      this.asked.push(...launches().map((l) => l?.pipeline()));
      return;
    }
    const found = recordings.get(key) ?? (await this.record(launches()));
    recordings.delete(key);
    recordings.set(key, found);
    for (const op of found.ops) this.dispatch(op);
    if (recordings.size > 2 * MAX_RECORDINGS) {
      this.submit();
      this.gpu.trim(MAX_RECORDINGS);
    }
  }

  launches({ steps }, frame) {
    const chosen = steps.flatMap((s) => (s.alternatives ? s.alternatives[this.chosen(s)] : [s]));
    return chosen.map((s) =>
      s.to
        ? this.copying(this.at(s.to, frame), this.at(s.source, frame), this.int(s.size))
        : this.launching(s, frame),
    );
  }

  /** The alternative of these sizes. */
  chosen({ sizes, edges, table }) {
    const cell = sizes.reduce((before, size, i) => {
      const value = this.int(size);
      return before * (edges[i].length + 1) + edges[i].filter((e) => e < value).length;
    }, 0);
    return table[cell];
  }

  /** Pipelines, bind groups and params of launches; those of an empty grid are none. */
  async record(launches) {
    const real = launches.filter((l) => l !== null);
    if (!real.length) return { ops: [], params: null };
    const { gpu } = this;
    return gpu.guarded(real[0].node, async () => {
      const align = Math.max(ALIGN, gpu.limits.minUniformBufferOffsetAlignment);
      const starts = [0];
      for (const l of real) starts.push(starts.at(-1) + roundUp(l.params.byteLength, align));
      const raw = new Uint8Array(starts.at(-1));
      real.forEach((l, i) => raw.set(l.params, starts[i]));
      const params = gpu.uniform(raw.byteLength);
      gpu.device.queue.writeBuffer(params, 0, raw);
      const pipelines = await Promise.all(real.map((l) => l.pipeline()));
      const ops = real.map(({ ranges, params: own, x, y, node, kernel }, i) => {
        const uniform = { buffer: params, offset: starts[i], size: own.byteLength };
        const entries = [...ranges, uniform].map((resource, binding) => ({ binding, resource }));
        const group = gpu.device.createBindGroup({ layout: gpu.layout(ranges.length), entries });
        return { pipeline: pipelines[i], group, x, y, node, kernel };
      });
      return { ops, params };
    });
  }

  /** Ranges of addresses as bindings: those that overlap share one, as WebGPU refuses two that may
   * be written; so do others of a GPU buffer where there are more than the adapter binds. */
  grouped(spans, node) {
    const { limits, buffers } = this.gpu;
    const align = limits.minStorageBufferOffsetAlignment;
    const most = limits.maxStorageBuffersPerShaderStage;
    const mostBytes = limits.maxStorageBufferBindingSize;
    const id = (group) => Math.floor(group.start / SPACE);
    const groups = spans
      .map(([start, end], i) => ({ start: start - (start % align), end: roundUp(end, VECTOR_BYTES), of: [i] }))
      .sort((a, b) => a.start - b.start);
    const join = (i) => {
      const [a, b] = groups.slice(i, i + 2);
      groups.splice(i, 2, { start: a.start, end: Math.max(a.end, b.end), of: [...a.of, ...b.of] });
    };
    for (let i = 0; i + 1 < groups.length; )
      if (groups[i + 1].start < groups[i].end) join(i);
      else i++;
    while (groups.length > most) {
      const costs = groups.slice(1).map((g, i) => (id(g) === id(groups[i]) ? g.end - groups[i].start : Infinity));
      const least = Math.min(...costs);
      if (least === Infinity) throw this.beyond(node, `${groups.length} GPU buffers`, most, "maxStorageBuffersPerShaderStage");
      join(costs.indexOf(least));
    }
    const large = groups.find((g) => g.end - g.start > mostBytes);
    if (large) throw this.beyond(node, `${large.end - large.start} bytes at once`, mostBytes, "maxStorageBufferBindingSize");
    groups.sort((a, b) => Math.min(...a.of) - Math.min(...b.of));
    const bindings = spans.map((_, i) => groups.findIndex((g) => g.of.includes(i)));
    const ranges = groups.map((g) => ({ buffer: buffers[id(g)], offset: g.start % SPACE, size: g.end - g.start }));
    return { bindings, ranges, starts: bindings.map((k) => groups[k].start) };
  }

  beyond(node, what, most, limit) {
    const reason = `it binds ${what}, and the adapter has at most ${most} (${limit})`;
    return new RlxError(`${node}: ${reason}. Run it at smaller sizes.`, { node, reason });
  }

  launching({ code: number, label: node, places, spans }, frame) {
    const code = this.plan.codes[number];
    const grid = code.grid.map((d) => this.int(d));
    if (!product(grid)) return null;
    const addresses = this.all(places, frame);
    const isEmpty = spans.map(([, , count = 1]) => this.int(count) === 0);
    const touched = spans.map(([low, high], i) =>
      // What has no elements is bound to bytes that nobody uses.
      isEmpty[i] ? [0, VECTOR_BYTES] : [low, high].map((d) => addresses[i] + this.int(d)),
    );
    const { bindings, ranges, starts } = this.grouped(touched, node);
    const [x, y] = folded(product(grid));
    const params = new DataView(new ArrayBuffer(code.paramsBytes));
    let at = -4;
    const put = (value) => params.setUint32((at += 4), value, true);
    addresses.forEach((a, i) => put(isEmpty[i] ? 0 : (a - starts[i]) / itemsize(code.buffers[i])));
    for (const [dtype, dim] of code.scalars) {
      const value = this.int(dim);
      if (dtype === "f32") params.setFloat32((at += 4), value, true);
      else put(value % 2 ** 32);
      if (itemsize(dtype) === 8) put(Math.floor(value / 2 ** 32));
    }
    [...grid, x].forEach(put);
    const text = () => shaderText(this.plan, this.plan.texts[code.text], bindings);
    const pipeline = () => this.gpu.pipeline(`${code.text}:${bindings}`, ranges.length, text, code.name, node);
    return { node, kernel: code.name, x, y, params: words(params), ranges, pipeline };
  }

  copying(to, source, size) {
    if (!size || to === source) return null;
    const spans = [to, source].map((a) => [a, a + size]);
    const { bindings, ranges, starts } = this.grouped(spans, "copy");
    const [x, y] = folded(Math.ceil(size / 256) + 1);
    const params = Uint32Array.of(to - starts[0], source - starts[1], size, x);
    const text = () => copyText(bindings[1] === 0);
    const pipeline = () => this.gpu.pipeline(`copy:${bindings}`, ranges.length, text, "copy", "copy");
    return { node: "copy", kernel: "copy", x, y, params: words(params), ranges, pipeline };
  }

  /** Copies [to, source, size] that control flow makes. */
  async copy(moves) {
    if (moves.length) await this.replay(`copy ${moves}`, () => moves.map((m) => this.copying(...m)));
  }

  // -- what the host must know

  found(sizes) {
    this.begin({ ...this.sizes, ...sizes });
    const more = {};
    for (const name of this.plan.capacities) {
      const [size, held] = [this.sizes[name.slice(0, -CAPACITY.length)] ?? 0, this.sizes[name]];
      if (size > held) more[name] = 2 ** Math.ceil(Math.log2(Math.max(size, 2 * held)));
    }
    if (Object.keys(more).length) throw new Outgrown(more);
  }

  settle(found) {
    if (found.length) this.found(Object.fromEntries(found.map(([n, d]) => [n, this.int(d)])));
  }

  async readSizes({ names }) {
    const { symbols, tables } = this.plan;
    const own = names.filter((n) => symbols.includes(n));
    const raw = await this.read(own.map((n) => [tables.sizes + 8 * symbols.indexOf(n), 8]));
    this.found(Object.fromEntries(own.map((n, i) => [n, Number(new BigInt64Array(raw[i].buffer)[0])])));
  }

  async isTrue(address) {
    const [[byte]] = await this.read([[address, 1]]);
    return byte !== 0;
  }

  // -- control flow

  async branch({ condition, bodies, operands, results, found }, frame) {
    const side = (await this.isTrue(this.at(condition, frame))) ? 0 : 1;
    await this.called(bodies[side], this.all([...operands, ...results], frame));
    this.settle(found[side]);
  }

  /** Memory for values of these sizes: what was there before where they fit. */
  async rooms(old, sizes) {
    if (old && sizes.every((s, i) => s <= old.sizes[i])) return old;
    const at = [];
    for (const size of sizes) at.push(await this.push(size));
    return { sizes, at };
  }

  carried(old, body, count) {
    return this.rooms(old, this.plan.routines[body].outputs.slice(0, count).map((s) => this.int(s)));
  }

  /** Rows of arrays from these addresses on. Kernels count on aligned addresses, so that rows which
   * are not are copied to rooms, or from them. */
  async rows(old, starts, dims) {
    const sizes = dims.map((d) => this.int(d));
    const isRoom = starts.map((a, i) => a % VECTOR_BYTES !== 0 || sizes[i] % VECTOR_BYTES !== 0);
    const rooms = await this.rooms(old?.rooms, sizes.map((s, i) => (isRoom[i] ? s : 0)));
    const at = (i) => starts.map((a, k) => a + i * sizes[k]);
    const moves = (i) => at(i).map((a, k) => [a, rooms.at[k], sizes[k]]).filter((_, k) => isRoom[k]);
    return {
      rooms,
      given: (i) => at(i).map((a, k) => (isRoom[k] ? rooms.at[k] : a)),
      load: (i) => this.copy(moves(i).map(([a, room, size]) => [room, a, size])),
      store: (i) => this.copy(moves(i)),
    };
  }

  async whileLoop(step, frame) {
    const [condition, body] = step.bodies;
    const [given, results] = [step.operands, step.results].map((p) => this.all(p, frame));
    const seen = given.slice(step.numCarries);
    let carries = given.slice(0, step.numCarries);
    let ends = results.slice(step.numCarries);
    let rows = null;
    const made = [null, null];
    const mark = this.top;
    const flag = await this.push(1);
    const stacked = (turn) => step.rows && this.found({ [step.rows]: turn });
    this.settle(step.first);
    let turn = 0;
    while (step.limit === null || turn < step.limit) {
      await this.called(condition, [...carries, ...seen, flag]);
      if (!(await this.isTrue(flag))) break;
      stacked(++turn);
      const next = (made[turn % 2] = await this.carried(made[turn % 2], body, step.numCarries));
      rows = await this.rows(rows, ends, step.rowSizes);
      await this.called(body, [...carries, ...seen, ...next.at, ...rows.given(0)]);
      await rows.store(0);
      this.settle(step.next);
      carries = next.at;
      ends = ends.map((e, i) => e + this.int(step.rowSizes[i]));
    }
    stacked(turn);
    await this.copy(carries.map((c, i) => [results[i], c, this.int(step.sizes[i])]));
    this.top = mark;
  }

  async scan(step, frame) {
    const count = step.numCarries;
    const [given, results] = [step.operands, step.results].map((p) => this.all(p, frame));
    const fixed = given.slice(count, count + step.numBcasts);
    const length = this.int(step.length);
    let carries = given.slice(0, count);
    const mark = this.top;
    const [body] = step.bodies;
    const made = [await this.carried(null, body, count), await this.carried(null, body, count)];
    const slices = await this.rows(null, given.slice(count + step.numBcasts), step.sliceSizes);
    const rows = await this.rows(null, results.slice(count), step.rowSizes);
    for (let turn = 0; turn < length; turn++) {
      const i = step.isReversed ? length - 1 - turn : turn;
      const next = made[turn % 2].at;
      await slices.load(i);
      await this.called(body, [...carries, ...fixed, ...slices.given(i), ...next, ...rows.given(i)]);
      await rows.store(i);
      carries = next;
    }
    await this.copy(carries.map((c, i) => [results[i], c, this.int(step.sizes[i])]));
    this.top = mark;
  }
}

const STEPS = {
  segment: "segment",
  sizes: "readSizes",
  call: "callRoutine",
  branch: "branch",
  while: "whileLoop",
  scan: "scan",
};
