"""Graphs exported for browsers, and what a page makes of them."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

import rlx
from rlx.frontends.web import export_web
from tests.browser.driver import Browser

Array = np.ndarray[Any, Any]

PREPARE = """
const kinds = { f64: Float64Array, f32: Float32Array, f16: Uint16Array, i64: BigInt64Array,
                i32: Int32Array, u8: Uint8Array, bool: Uint8Array };
window.counts = { made: 0, live: 0 };
const create = globalThis.GPUDevice?.prototype.createBuffer;
if (create)
  GPUDevice.prototype.createBuffer = function (how) {
    const made = create.call(this, how);
    counts.made++; counts.live++;
    const destroy = made.destroy;
    let isLive = true;
    made.destroy = () => { if (isLive) { counts.live--; isLive = false; } destroy.call(made); };
    return made;
  };
window.value = ([dtype, dims, raw]) => {
  const bytes = Uint8Array.from(atob(raw), (c) => c.charCodeAt(0));
  return { data: new kinds[dtype](bytes.buffer), dims };
};
window.values = (given) =>
  Object.fromEntries(Object.entries(given).map(([k, v]) => [k, value(v)]));
window.plain = (results) => Object.fromEntries(Object.entries(results).map(([name, a]) => {
  const bytes = new Uint8Array(a.buffer, a.byteOffset, a.byteLength);
  let text = "";
  for (let i = 0; i < bytes.length; i += 4096)
    text += String.fromCharCode(...bytes.subarray(i, i + 4096));
  return [name, [a.dims, btoa(text)]];
}));
"""
"""Arrays to a page and back; how many GPU buffers there were, and are."""

LOAD = """
const { load } = await import(given[0] + "rlx.js");
window.model = await load(given[0], given[1] ?? {});
return model.adapter;
"""
RUN = "return plain(await model.run(values(given[0])));"


def opened(window: Browser, address: str, folder: str, **options: Any) -> str:
    """A page that has loaded the model of a folder: what runs it."""
    window.open(f"{address}{folder}/index.html?plain")
    window.run(PREPARE)
    return window.wait(LOAD, f"{address}{folder}/", options)


def sent(arrays: Mapping[str, Array]) -> dict[str, Any]:
    """Arrays as a page is given them."""

    def one(a: Array) -> list[Any]:
        raw = base64.b64encode(np.ascontiguousarray(a).tobytes()).decode()
        return [rlx.DType.of(a.dtype).value, list(a.shape), raw]

    return {name: one(a) for name, a in arrays.items()}


def received(found: Mapping[str, Any], dtypes: Mapping[str, Any]) -> dict[str, Array]:
    return {
        name: np.frombuffer(base64.b64decode(raw), dtypes[name]).reshape(dims)
        for name, (dims, raw) in found.items()
    }


def run(window: Browser, graph: rlx.Graph, arrays: Mapping[str, Array]) -> dict[str, Array]:
    """What the model of the page gives."""
    dtypes = {n: o.shape.dtype.numpy for n, o in zip(graph.output_names, graph.outputs)}
    return received(window.wait(RUN, sent(arrays)), dtypes)


def expected(
    graph: rlx.Graph, params: Mapping[str, Array], arrays: Mapping[str, Array]
) -> dict[str, Array]:
    """What NumPy gives."""
    made = rlx.compile(graph, "reference", params=params)(*arrays.values())
    listed = made if isinstance(made, tuple) else (made,)
    return dict(zip(graph.output_names, listed))


def exported(graph: rlx.Graph, root: Path, name: str, **how: Any) -> None:
    export_web(graph, root / name, **how)
