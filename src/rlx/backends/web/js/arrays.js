/** Arrays that callers give, as bytes and dims. */

import { RlxError } from "./sizes.js";

const Half = globalThis.Float16Array ?? Uint16Array;
/** Bytes of an element, what results are, and what inputs may be besides. */
export const DTYPES = {
  f64: [8, Float64Array],
  f32: [4, Float32Array],
  f16: [2, Half, Uint16Array],
  bf16: [2, Uint16Array],
  i64: [8, BigInt64Array],
  u64: [8, BigUint64Array],
  i32: [4, Int32Array],
  u32: [4, Uint32Array],
  i16: [2, Int16Array],
  u16: [2, Uint16Array],
  i8: [1, Int8Array],
  u8: [1, Uint8Array, Uint8ClampedArray],
  bool: [1, Uint8Array],
};
export const ALIGN = 256; // of every allocation, and of the offset of every binding
export const itemsize = (dtype) => DTYPES[dtype]?.[0] ?? 1;
export const product = (dims) => dims.reduce((a, b) => a * b, 1);
export const roundUp = (n, to = ALIGN) => Math.ceil(n / to) * to;

/** Numbers as an array of a dtype. */
function typed(values, dtype, name) {
  const [, own] = DTYPES[dtype];
  if (dtype.endsWith("f16") && own === Uint16Array)
    throw new RlxError(`input "${name}" is ${dtype}: give its bits as a Uint16Array.`);
  try {
    return own.from(values, dtype.endsWith("64") ? BigInt : Number);
  } catch (cause) {
    throw new RlxError(`input "${name}" holds what is no ${dtype}.`, { cause });
  }
}

/** The dims of nested arrays, and their numbers in order. */
function flattened(value, name) {
  const dims = [];
  for (let v = value; Array.isArray(v); v = v[0]) dims.push(v.length);
  const data = dims.length ? value.flat(dims.length - 1) : [value];
  if (data.length !== product(dims))
    throw new RlxError(`input "${name}": rows of the nested array differ in length.`);
  return { dims: dims.length === 1 ? null : dims, data };
}

/** A typed array that elements of the dtype are read from. */
function checked(array, name, dtype) {
  const [, own, other = own] = DTYPES[dtype];
  if (array instanceof own || array instanceof other) return array;
  throw new RlxError(
    `input "${name}" is ${dtype}: give a ${own.name}, not a ${array.constructor.name}.`,
  );
}

/** Those that a value states, as what `run` gives does. @param {any} value */
const dimsOf = (value) => value.dims ?? null;
const isOnGpu = (value) => typeof GPUBuffer !== "undefined" && value instanceof GPUBuffer;

/** An input as data or a GPU buffer, with its dims where they are given. */
export function described(value, name, dtype) {
  if (value === undefined || value === null) throw new RlxError(`input "${name}" is missing.`);
  if (isOnGpu(value)) return { buffer: value, offset: 0, dims: null };
  if (ArrayBuffer.isView(value))
    return { data: checked(value, name, dtype), dims: dimsOf(value) };
  const dims = dimsOf(value);
  if (isOnGpu(value.buffer)) return { buffer: value.buffer, offset: value.offset ?? 0, dims };
  if (ArrayBuffer.isView(value.data)) return { data: checked(value.data, name, dtype), dims };
  const found = flattened(value.data ?? value, name);
  return { data: typed(found.data, dtype, name), dims: dims ?? found.dims };
}

/** Bytes of a typed array, as many as a multiple of four. */
export function words(array) {
  const bytes = new Uint8Array(array.buffer, array.byteOffset, array.byteLength);
  if (bytes.byteLength % 4 === 0) return bytes;
  const padded = new Uint8Array(roundUp(bytes.byteLength, 4));
  padded.set(bytes);
  return padded;
}
