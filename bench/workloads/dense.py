"""A: a feed-forward layer. B: three tiny ones. G: work bound by memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import rlx
from bench.workload import Array, Maker, Workload, bytes_of
from rlx import ops


def shaped(array: Array) -> rlx.Shape:
    return rlx.Shape(array.shape, rlx.DType.of(array.dtype))


def declared(m: rlx.HirModule, params: Mapping[str, Array]) -> dict[str, Any]:
    """A weight of the model for each param."""
    return {k: m.param(k, shaped(v)) for k, v in params.items()}


# -- A --------------------------------------------------------------------------------------------


def mlp_function(k: Any, p: Any, x: Any) -> Any:
    raised = k.gelu_tanh(k.linear(x, p["fc1.w"], p["fc1.b"]))
    return k.layer_norm(x + k.linear(raised, p["fc2.w"], p["fc2.b"]), p["ln.g"], p["ln.b"], 1e-5)


def mlp(rows: int = 32, width: int = 768, hidden: int = 3072) -> Workload:
    make = Maker(1)
    params = {
        "fc1.w": make.weight(hidden, width),
        "fc1.b": make.normal(hidden, scale=0.1),
        "fc2.w": make.weight(width, hidden),
        "fc2.b": make.normal(width, scale=0.1),
        "ln.g": make.near_one(width),
        "ln.b": make.normal(width, scale=0.1),
    }
    x = make.normal(rows, width)

    def model(given: Mapping[str, Array]) -> rlx.HirModule:
        m = rlx.HirModule("mlp")
        row, p = m.input("x", shaped(x)), declared(m, given)
        ffn = (p["fc1.w"], p["fc2.w"], p["fc1.b"], p["fc2.b"])
        mixed = m.gelu_ffn(row, *ffn, approximate=True)
        m.set_outputs([m.residual_layer_norm(mixed, row, p["ln.g"], p["ln.b"], eps=1e-5)])
        return m

    return Workload(
        "A_mlp", f"{rows}×{width}→{hidden}→{width}, GELU, residual, layer norm",
        mlp_function, model, params, (x,), flops=4.0 * rows * width * hidden,
        reads=bytes_of(params, (x,)), writes=x.nbytes,
    )  # fmt: skip


# -- B --------------------------------------------------------------------------------------------


def tiny_function(k: Any, p: Any, x: Any) -> Any:
    for i in range(len(p) // 2):
        x = k.relu(k.linear(x, p[f"l{i}.w"], p[f"l{i}.b"]))
    return x


def tiny(width: int = 64, layers: int = 3) -> Workload:
    make = Maker(2)
    params: dict[str, Array] = {}
    for i in range(layers):
        params[f"l{i}.w"] = make.weight(width, width)
        params[f"l{i}.b"] = make.normal(width, scale=0.1)
    x = make.normal(1, width)

    def model(given: Mapping[str, Array]) -> rlx.HirModule:
        m = rlx.HirModule("tiny")
        row, p = m.input("x", shaped(x)), declared(m, given)
        for i in range(layers):
            row = m.linear(row, p[f"l{i}.w"], p[f"l{i}.b"], activation="relu")
        m.set_outputs([row])
        return m

    return Workload(
        "B_tiny", f"{layers} layers of {width}, one row", tiny_function, model, params, (x,),
        flops=2.0 * layers * width * width, reads=bytes_of(params, (x,)), writes=x.nbytes,
    )  # fmt: skip


# -- G --------------------------------------------------------------------------------------------


def softmax_function(k: Any, p: Any, x: Any) -> Any:
    return k.softmax(x)


def softmax(rows: int = 2048, width: int = 2048) -> Workload:
    x = Maker(3).normal(rows, width)
    return Workload(
        "G_softmax", f"softmax of {rows}×{width}", softmax_function,
        lambda _: rlx.trace(ops.softmax, x, name="softmax"), {}, (x,),
        flops=5.0 * x.size, reads=x.nbytes, writes=x.nbytes,
    )  # fmt: skip


def chain_function(k: Any, p: Any, x: Any) -> Any:
    y = k.sqrt(k.abs(x * 1.5 + 0.5) + 1.0) * 0.75
    y = k.at_most((k.at_least(y, 0.25) - 0.1) * x, 6.0)
    return k.tanh(y) + x


def chain_graph(x: Any) -> Any:
    y = ops.sqrt(ops.abs(x * 1.5 + 0.5) + 1.0) * 0.75
    y = ops.clamp((ops.clamp(y, min=0.25) - 0.1) * x, max=6.0)
    return ops.tanh(y) + x


def chain(rows: int = 4096, width: int = 4096) -> Workload:
    x = Maker(4).normal(rows, width)
    return Workload(
        "G_chain", f"12 elementwise steps on {rows}×{width}", chain_function,
        lambda _: rlx.trace(chain_graph, x, name="chain"), {}, (x,),
        flops=12.0 * x.size, reads=x.nbytes, writes=x.nbytes,
    )  # fmt: skip


def layernorm_function(k: Any, p: Any, x: Any) -> Any:
    return k.layer_norm(x, p["g"], p["b"], 1e-5)


def layernorm(rows: int = 8192, width: int = 1024) -> Workload:
    make = Maker(5)
    params = {"g": make.near_one(width), "b": make.normal(width, scale=0.1)}
    x = make.normal(rows, width)

    def model(given: Mapping[str, Array]) -> rlx.HirModule:
        m = rlx.HirModule("layernorm")
        row, p = m.input("x", shaped(x)), declared(m, given)
        m.set_outputs([m.layer_norm(row, p["g"], p["b"], eps=1e-5)])
        return m

    return Workload(
        "G_layernorm", f"layer norm of {rows}×{width}", layernorm_function, model, params, (x,),
        flops=8.0 * x.size, reads=x.nbytes, writes=x.nbytes,
    )  # fmt: skip
