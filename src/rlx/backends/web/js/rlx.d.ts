/** The runtime of models that rlx has compiled for browsers: `rlx compile model.onnx -t wgpu --web folder/`. */

/** A size of an array: a number, or a formula of named dims. */
export type Dim = number | unknown[];
export type DType =
  | "f64" | "f32" | "f16" | "bf16" | "i64" | "u64" | "i32" | "u32" | "i16" | "u16" | "i8" | "u8" | "bool";
/** i64 is a BigInt64Array, f16 and bf16 are bits in a Uint16Array (f16 a Float16Array, where the
 * browser has it), bool is a Uint8Array of 0 and 1. */
export type TypedArray =
  | Float64Array | Float32Array | Uint16Array | BigInt64Array | BigUint64Array | Int32Array | Uint32Array
  | Int16Array | Int8Array | Uint8Array | Uint8ClampedArray;
export type Nested = number | bigint | boolean | Nested[];
/** A value on the GPU, for models that run there; dims are needed where they do not follow from the model. */
export interface GpuValue {
  buffer: GPUBuffer;
  offset?: number;
  dims?: number[];
}
/** Typed arrays are row by row; dims are needed where more than one named dim is not known. */
export type Input = TypedArray | Nested | { data: TypedArray | Nested[]; dims?: number[] } | GPUBuffer | GpuValue;
/** A result that was read back. */
export type Output = TypedArray & { readonly dims: number[] };
/** A result that stays on the GPU until it is destroyed; an input of the next model. */
export interface KeptOutput extends GpuValue {
  readonly buffer: GPUBuffer;
  readonly offset: 0;
  readonly dims: number[];
  readonly dtype: DType;
  destroy(): void;
}
export interface Declared {
  readonly name: string;
  readonly dtype: DType;
  readonly dims: Dim[];
  /** Dtype and dims as text. */
  readonly shape: string;
}
export interface Progress {
  /** Bytes of the weights that were checked and uploaded. */
  loaded: number;
  total: number;
}
/** What computes: WebGPU, or WebAssembly. */
export type Engine = "webgpu" | "wasm";
export interface LoadOptions {
  onProgress?: (progress: Progress) => void;
  /** This one alone. Else WebGPU, or WebAssembly where there is no GPU, or no kernel for the model. */
  engine?: Engine;
  /** The device that WebGPU uses; else one is opened. */
  device?: GPUDevice;
  /** Open a device again in `run` after one was lost; true if not said. */
  reload?: boolean;
  /** Which plan of WebGPU: "gpu", or "software" for adapters that are the host's processor. */
  plan?: "gpu" | "software";
  /** Which instructions of WebAssembly, if not the most that the browser has. */
  simd?: "simd" | "relaxed";
}
export interface RunOptions {
  /** Outputs that stay on the GPU: all, or those named. WebAssembly has none. */
  keep?: boolean | string[];
}
export interface Profile {
  /** Of a whole call, results included. */
  wallMs: number;
  /** In order; empty on WebAssembly, and where the device has no timestamps. */
  kernels: { node: string; kernel: string; us: number }[];
}

/** What went wrong: `node` is of the model, if it is known, and `reason` says why. */
export class RlxError extends Error {
  readonly node: string;
  readonly reason: string;
}

/** A loaded model. Calls run one after the other. */
export class Model {
  private constructor();
  readonly engine: Engine;
  /** Why this engine. */
  readonly why: string;
  /** What model.json holds. */
  readonly manifest: { name: string; names: Record<string, [number, number | null]> };
  /** What runs it, in words. */
  readonly adapter: string;
  readonly inputs: readonly Declared[];
  readonly outputs: readonly Declared[];
  readonly loadMs: number;
  run(inputs: Record<string, Input>): Promise<Record<string, Output>>;
  run(inputs: Record<string, Input>, options: { keep: true }): Promise<Record<string, KeptOutput>>;
  run(inputs: Record<string, Input>, options: RunOptions): Promise<Record<string, Output | KeptOutput>>;
  profile(inputs: Record<string, Input>): Promise<Profile>;
  /** Choose an engine and load all again, on the device given or a new one. */
  reload(device?: GPUDevice): Promise<void>;
  /** Free all memory of the engine. */
  dispose(): Promise<void>;
}

/** The value of a size at sizes of named dims. */
export function evaluate(dim: Dim, sizes: Record<string, number>): number;

/** The model of a folder: its address, or its files by name (as of a drop). */
export function load(
  folder?: string | URL | Map<string, Blob> | Record<string, Blob>,
  options?: LoadOptions,
): Promise<Model>;
