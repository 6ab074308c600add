/** A WebGPU device: its buffers by number, pipelines by text and bindings, recordings. */

import { ALIGN, roundUp } from "./arrays.js";
import { RlxError } from "./sizes.js";

export const ARENA = 0; // the GPU buffer of calls; the slabs of weights follow
const ENTRY = "k_main"; // of every kernel
const MAX_WORKGROUPS = 65535; // along a dim of a dispatch

/** Bytes from anywhere to anywhere: a thread makes one word of the target. */
export const copyText = (isShared) => `
struct Params { to: u32, source: u32, size: u32, fold: u32 }
@group(0) @binding(0) var<storage, read_write> a: array<u32>;
${isShared ? "" : "@group(0) @binding(1) var<storage, read_write> b: array<u32>;"}
@group(0) @binding(${isShared ? 1 : 2}) var<uniform> p: Params;
fn at(i: u32) -> u32 { return (${isShared ? "a" : "b"}[i >> 2u] >> ((i & 3u) * 8u)) & 255u; }
@compute @workgroup_size(64) fn ${ENTRY}(
    @builtin(workgroup_id) w: vec3<u32>, @builtin(local_invocation_index) l: u32) {
  let word = (p.to >> 2u) + (w.x + w.y * p.fold) * 64u + l;
  let end = p.to + p.size;
  if (word * 4u >= end) { return; }
  var made = a[word];
  for (var k = 0u; k < 4u; k++) {
    let i = word * 4u + k;
    if (i >= p.to && i < end) {
      made = (made & ~(255u << (k * 8u))) | (at(p.source + (i - p.to)) << (k * 8u));
    }
  }
  a[word] = made;
}`;

/** Workgroups for so many blocks: rows of at most the limit. */
export function folded(blocks) {
  const rows = Math.max(1, Math.ceil(blocks / MAX_WORKGROUPS));
  return [Math.ceil(blocks / rows), rows];
}

/** The text of a kernel whose buffer i is at binding `bindings[i]`. A binding is an array of the
 * widest elements that all accesses through it allow. */
export function shaderText(plan, { params, head, body, accesses }, bindings) {
  const count = Math.max(-1, ...bindings) + 1;
  const kinds = Array.from({ length: count }, (_, k) => {
    const uses = accesses.filter(([b]) => bindings[b] === k).map(([, u]) => plan.accesses[u]);
    const stores = uses.filter((u) => u.stores).map((u) => u.words);
    const unit = Math.min(Math.max(1, ...uses.map((u) => u.words)), ...stores);
    return uses.some((u) => u.atomic) ? "atomic" : String(unit);
  });
  const types = { atomic: "atomic<u32>", 1: "u32", 2: "vec2<u32>", 4: "vec4<u32>" };
  const lines = kinds.map(
    (k, i) => `@group(0) @binding(${i}) var<storage, read_write> m${i}: array<${types[k]}>;`,
  );
  lines.push(`struct Params { ${params} }`);
  lines.push(`@group(0) @binding(${count}) var<uniform> p: Params;`);
  for (const [buffer, use] of accesses) {
    const text = plan.accesses[use].texts[kinds[bindings[buffer]]];
    lines.push(text.replaceAll("{buffer}", buffer).replaceAll("{binding}", bindings[buffer]));
  }
  return `${head}${lines.join("\n")}\n${body}`;
}

export class Gpu {
  /** @param {GPUDevice} device @param {any} info @param {boolean} isOwn opened here */
  constructor(device, info, isOwn) {
    this.device = device;
    this.info = info;
    this.isOwn = isOwn;
    this.limits = device.limits;
    /** @type {GPUBuffer[]} */
    this.buffers = [];
    /** @type {Map<string, Promise<GPUComputePipeline>>} */
    this.pipelines = new Map();
    /** @type {Map<number, GPUBindGroupLayout>} */
    this.layouts = new Map();
    this.recordings = new Map(); // the last used behind all others
    this.spare = new Map(); // uniform buffers that no recording uses, by size
    /** @type {GPUBuffer | null} */
    this.readback = null;
    /** @type {GPUDeviceLostInfo | null} */
    this.lost = null;
    device.lost.then((found) => (this.lost = found));
  }

  allocate(size, usage, label) {
    const bytes = roundUp(Math.max(size, ALIGN));
    if (bytes > this.limits.maxBufferSize)
      throw new RlxError(
        `${label} needs a buffer of ${bytes} bytes, and the adapter has at most ` +
          `${this.limits.maxBufferSize} (maxBufferSize). Run it at smaller sizes.`,
      );
    return this.device.createBuffer({ size: bytes, usage, label: `rlx ${label}` });
  }

  storage(size, label) {
    const { STORAGE, COPY_SRC, COPY_DST } = GPUBufferUsage;
    return this.allocate(size, STORAGE | COPY_SRC | COPY_DST, label);
  }

  /** A uniform buffer, perhaps one that a recording has left. */
  uniform(size) {
    const bytes = roundUp(size, 4 * ALIGN);
    const left = this.spare.get(bytes)?.pop();
    return left ?? this.allocate(bytes, GPUBufferUsage.UNIFORM | GPUBufferUsage.COPY_DST, "params");
  }

  /** Let go of recordings, the oldest first, down to so many. */
  trim(most) {
    for (const [key, { params }] of this.recordings) {
      if (this.recordings.size <= most) return;
      this.recordings.delete(key);
      if (params) this.spare.set(params.size, [...(this.spare.get(params.size) ?? []), params]);
    }
  }

  /** What a function makes, or the error of the device. @template T @param {string} what
   * @param {() => T | Promise<T>} make @returns {Promise<T>} */
  async guarded(what, make) {
    this.device.pushErrorScope("out-of-memory");
    this.device.pushErrorScope("validation");
    const made = await Promise.allSettled([Promise.resolve().then(make)]);
    const invalid = await this.device.popErrorScope();
    const memory = await this.device.popErrorScope();
    if (made[0].status === "rejected") throw made[0].reason;
    const reason = memory ? "the GPU is out of memory" : "the GPU refuses it";
    if (memory ?? invalid)
      throw new RlxError(`${what}: ${reason}. ${(memory ?? invalid).message}`, { node: what, reason });
    return made[0].value;
  }

  /** Of bind groups with so many storage buffers. */
  layout(count) {
    if (!this.layouts.has(count)) {
      /** @type {(binding: number) => GPUBufferBindingType} */
      const type = (binding) => (binding < count ? "storage" : "uniform");
      const entries = Array.from({ length: count + 1 }, (_, binding) => ({
        binding,
        visibility: GPUShaderStage.COMPUTE,
        buffer: { type: type(binding) },
      }));
      this.layouts.set(count, this.device.createBindGroupLayout({ entries }));
    }
    return this.layouts.get(count);
  }

  /** The promise of a pipeline, which is made once. */
  pipeline(key, count, text, kernel, node) {
    if (!this.pipelines.has(key)) {
      const module = this.device.createShaderModule({ code: text(), label: kernel });
      const layout = this.device.createPipelineLayout({ bindGroupLayouts: [this.layout(count)] });
      const made = this.device
        .createComputePipelineAsync({ layout, compute: { module, entryPoint: ENTRY }, label: kernel })
        .catch(async (cause) => {
          const { messages } = await module.getCompilationInfo();
          const said = messages.find((m) => m.type === "error");
          const reason = said ? `line ${said.lineNum}: ${said.message}` : cause.message;
          const text = `${node}: kernel ${kernel} is refused: ${reason}`;
          throw new RlxError(text, { node, reason, cause });
        });
      this.pipelines.set(key, made);
    }
    return this.pipelines.get(key);
  }

  destroy() {
    const params = [...this.recordings.values()].map((r) => r.params);
    const all = [...this.buffers, this.readback, ...params, ...[...this.spare.values()].flat()];
    all.forEach((buffer) => buffer?.destroy());
    this.recordings.clear();
    this.spare.clear();
    if (this.isOwn) this.device.destroy();
  }
}
