/** Runs the model of a folder in node: a request as JSON on standard input, answers on standard output.
 *
 * The engine is given files by name, as a page gives it those of a drop. */

import { readFileSync, readdirSync } from "node:fs";
import { pathToFileURL } from "node:url";

const KINDS = {
  f64: Float64Array, f32: Float32Array, f16: Uint16Array, bf16: Uint16Array, i64: BigInt64Array, u64: BigUint64Array,
  i32: Int32Array, u32: Uint32Array, i16: Int16Array, u16: Uint16Array, i8: Int8Array, u8: Uint8Array, bool: Uint8Array,
};
const { folder, options, calls } = JSON.parse(readFileSync(0, "utf-8"));
const { load } = await import(pathToFileURL(`${folder}/rlx.js`));
const files = new Map(readdirSync(folder).map((name) => [name, new Blob([readFileSync(`${folder}/${name}`)])]));

const typed = ([dtype, dims, raw]) => {
  const bytes = Uint8Array.from(Buffer.from(raw, "base64"));
  return { data: new KINDS[dtype](bytes.buffer), dims };
};
const values = (given) => Object.fromEntries(Object.entries(given).map(([name, v]) => [name, typed(v)]));
const plain = (made) =>
  Object.fromEntries(
    Object.entries(made).map(([name, a]) => [name, [a.dims, Buffer.from(a.buffer, a.byteOffset, a.byteLength).toString("base64")]]),
  );
const said = (error) => ({ error: error.message, name: error.name, node: error.node });

const answer = { calls: [] };
try {
  const model = await load(files, options);
  Object.assign(answer, { engine: model.engine, why: model.why, adapter: model.adapter });
  for (const { inputs, options: how } of calls)
    answer.calls.push(await model.run(values(inputs), how ?? {}).then((made) => ({ outputs: plain(made) }), said));
  answer.memory = model.runtime.memory.buffer.byteLength;
} catch (error) {
  Object.assign(answer, said(error));
}
process.stdout.write(JSON.stringify(answer));
