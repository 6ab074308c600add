/** Engines on one page: each is loaded once, then all are called in turns. */

const DTYPES = { i64: ["int64", BigInt64Array], f32: ["float32", Float32Array] };

function decoded([dtype, dims, raw]) {
  const bytes = Uint8Array.from(atob(raw), (c) => c.charCodeAt(0));
  return { kind: DTYPES[dtype][0], data: new DTYPES[dtype][1](bytes.buffer), dims };
}

async function rlxEngine(name, inputs) {
  const { load } = await import(`/${name}/rlx.js`);
  const model = await load(`/${name}/`);
  const given = Object.fromEntries(model.inputs.map(({ name }, i) => [name, inputs[i]]));
  const call = async () => Object.values(await model.run(given))[0];
  const profile = async () => (await model.profile(given)).kernels;
  return { call, profile, adapter: model.adapter, close: () => model.dispose() };
}

async function ortEngine(name, inputs, file, provider) {
  const ort = await import(`/ort/${file}`);
  ort.env.wasm.numThreads = 1;
  ort.env.wasm.wasmPaths = "/ort/";
  const session = await ort.InferenceSession.create(`/${name}.onnx`, { executionProviders: [provider] });
  const tensor = ({ kind, data, dims }) => new ort.Tensor(kind, data, dims);
  const given = Object.fromEntries(session.inputNames.map((name, i) => [name, tensor(inputs[i])]));
  const call = async () => Object.values(await session.run(given))[0].data;
  return { call, close: () => session.release() };
}

const ENGINES = {
  rlx: rlxEngine,
  "ort-webgpu": (name, inputs) => ortEngine(name, inputs, "ort.webgpu.min.mjs", "webgpu"),
  "ort-wasm": (name, inputs) => ortEngine(name, inputs, "ort.wasm.min.mjs", "wasm"),
};

/** What each engine gives, its load and first call, and the times of its calls in turns. */
export async function bench(name, given, rounds) {
  const inputs = given.map(decoded);
  const found = {};
  const engines = {};
  for (const [engine, open] of Object.entries(ENGINES)) {
    const start = performance.now();
    try {
      engines[engine] = await open(name, inputs);
      const loadMs = performance.now() - start;
      const made = await engines[engine].call();
      const firstMs = performance.now() - start - loadMs;
      found[engine] = { loadMs, firstMs, times: [], made: Array.from(made) };
    } catch (error) {
      found[engine] = { error: String(error) };
    }
  }
  for (let round = 0; round < rounds; round++)
    for (const [engine, { call }] of Object.entries(engines)) {
      if (found[engine].error) continue;
      const start = performance.now();
      await call();
      found[engine].times.push(performance.now() - start);
    }
  if (engines.rlx) {
    found.rlx.adapter = engines.rlx.adapter;
    found.rlx.kernels = (await engines.rlx.profile()).length;
  }
  for (const { close } of Object.values(engines)) await close();
  return found;
}
