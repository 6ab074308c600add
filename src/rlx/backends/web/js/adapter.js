/** The adapter of WebGPU, if there is one: what decides between engines is known before one is
 * imported. */

import { RlxError } from "./sizes.js";

const SOFTWARE = /swiftshader|llvmpipe|lavapipe|warp|basic render/i;

/** An adapter in words. */
export const named = ({ vendor, architecture, description }) =>
  [vendor, architecture, description].filter(Boolean).join(" ") || "unnamed";

/** Is the adapter the host's processor? Schedules are others then. */
export const isSoftware = ({ architecture = "", description = "", isFallbackAdapter = false }) =>
  isFallbackAdapter || SOFTWARE.test(`${architecture} ${description}`);

/** The adapter, but not one in software where another engine can be had: WebAssembly is several times
 * as fast on the same processor. */
export async function adapterFor(hasOther) {
  const gpu = globalThis.navigator?.gpu;
  if (!gpu)
    throw new RlxError("there is no WebGPU: not in this browser, or not for a page without https.");
  const adapter = await gpu.requestAdapter({ powerPreference: "high-performance" }).catch(() => null);
  if (!adapter) throw new RlxError("WebGPU finds no adapter: the GPU or its driver is unsupported.");
  if (hasOther && isSoftware(adapter.info))
    throw new RlxError(`WebGPU is software here (${named(adapter.info)}), slower than WebAssembly.`, { isSlower: true });
  return adapter;
}
