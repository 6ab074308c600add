/** Engines on one page: those of a kind are loaded once each, then called in turns. */

const WARM_UPS = 3; // calls, in which browsers compile WebAssembly anew for speed

const DTYPES = { i64: ["int64", BigInt64Array], f32: ["float32", Float32Array] };

function decoded([dtype, dims, raw]) {
  const bytes = Uint8Array.from(atob(raw), (c) => c.charCodeAt(0));
  return { kind: DTYPES[dtype][0], data: new DTYPES[dtype][1](bytes.buffer), dims };
}

/** What a page asks of WebGPU, whichever library asks: counted from here on. */
const asked = { texts: new Set(), pipelines: new Set(), dispatches: 0, submits: 0 };

function noted(type, name, note) {
  const real = type.prototype[name];
  type.prototype[name] = function (...given) {
    note(...given);
    return real.apply(this, given);
  };
}

if (globalThis.GPUDevice) {
  noted(GPUDevice, "createShaderModule", ({ code }) => asked.texts.add(code));
  noted(GPUComputePassEncoder, "setPipeline", (pipeline) => asked.pipelines.add(pipeline));
  noted(GPUComputePassEncoder, "dispatchWorkgroups", () => asked.dispatches++);
  noted(GPUComputePassEncoder, "dispatchWorkgroupsIndirect", () => asked.dispatches++);
  noted(GPUQueue, "submit", () => asked.submits++);
}

function reset() {
  Object.assign(asked, { texts: new Set(), pipelines: new Set(), dispatches: 0, submits: 0 });
}

async function launches(call) {
  reset();
  await call();
  return { kernels: asked.pipelines.size, dispatches: asked.dispatches, submits: asked.submits };
}

async function rlxEngine(name, inputs, engine) {
  const { load } = await import(`/${name}/rlx.js`);
  const model = await load(`/${name}/`, { engine });
  const given = Object.fromEntries(model.inputs.map(({ name }, i) => [name, inputs[i]]));
  const call = async () => Object.values(await model.run(given))[0];
  return { call, adapter: model.adapter, close: () => model.dispose() };
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
  webgpu: {
    "rlx-webgpu": (name, inputs) => rlxEngine(name, inputs, "webgpu"),
    "ort-webgpu": (name, inputs) => ortEngine(name, inputs, "ort.webgpu.min.mjs", "webgpu"),
  },
  wasm: {
    "rlx-wasm": (name, inputs) => rlxEngine(name, inputs, "wasm"),
    "ort-wasm": (name, inputs) => ortEngine(name, inputs, "ort.wasm.min.mjs", "wasm"),
  },
};

/** What each engine of a kind gives, its load and first call, and the times of its calls in turns. */
export async function bench(kind, name, given, rounds) {
  const inputs = given.map(decoded);
  const found = {};
  const engines = {};
  for (const [engine, open] of Object.entries(ENGINES[kind])) {
    reset();
    const start = performance.now();
    try {
      engines[engine] = await open(name, inputs);
      const loadMs = performance.now() - start;
      const made = await engines[engine].call();
      const firstMs = performance.now() - start - loadMs;
      found[engine] = { loadMs, firstMs, times: [], made: Array.from(made), modules: asked.texts.size };
      for (let i = 0; i < WARM_UPS; i++) await engines[engine].call();
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
  for (const [engine, { call, adapter, close }] of Object.entries(engines)) {
    if (!found[engine].error) Object.assign(found[engine], { adapter, launches: await launches(call) });
    await close();
  }
  return found;
}
