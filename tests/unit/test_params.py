"""Weights that are read from a file: when, how often, and what stays in memory."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import rlx
from rlx import ops
from rlx.core.params import Params
from rlx.ops.quant.gguf_encoding import encoded
from rlx.runtime.executable import adopt

Array = np.ndarray[Any, Any]


class Reads:
    """Arrays that are counted when they are read."""

    def __init__(self, arrays: dict[str, Array]) -> None:
        self.arrays, self.counts = arrays, dict.fromkeys(arrays, 0)

    def of(self, name: str) -> Callable[[], Array]:
        def read() -> Array:
            self.counts[name] += 1
            return self.arrays[name].copy()

        return read

    @property
    def params(self) -> Params:
        return Params.reading({name: self.of(name) for name in self.arrays})


def test_a_weight_that_somebody_holds_is_not_read_again() -> None:
    reads = Reads({"w": np.ones(3, np.float32)})
    params = reads.params
    held = params["w"]
    assert params["w"] is held
    assert "w" in params
    assert reads.counts == {"w": 1}
    del held
    gc.collect()
    assert params["w"].sum() == 3
    assert reads.counts == {"w": 2}


def test_params_that_are_replaced_and_left_out() -> None:
    one, other = Params.of({"a": np.zeros(1), "b": np.zeros(1)}), Params.of({"b": np.ones(1)})
    both = one | other
    assert both["b"][0] == 1
    assert both["a"] is one["a"]
    assert both.identity("a") == one.identity("a")
    assert both.identity("b") != one.identity("b")
    assert list(both.without(["a"])) == ["b"]


def packed_model() -> tuple[rlx.Graph, dict[str, Array]]:
    """A product with blocks of a GGUF file, which are packed, and a table, which calls read."""
    rng = np.random.default_rng(0)
    g = rlx.Graph("packed")
    ids = g.input("ids", rlx.Shape([rlx.Dim("rows", 1, 64)], rlx.DType.I64))
    table = g.param("table", rlx.Shape([50, 64]))
    weight = g.param("weight", rlx.Shape([96, 68], rlx.DType.U8))
    g.set_outputs([g.gguf_matmul(g.gather(table, ids, axis=0), weight, scheme="q8_0")])
    blocks = encoded(rng.normal(size=(96, 64)).astype(np.float32), "q8_0")
    return g, {"table": rng.normal(size=(50, 64)).astype(np.float32), "weight": blocks}


def product(table: Array, weight: Array) -> Array:
    return table @ np.asarray(ops.gguf_dequantize(weight, scheme="q8_0")).T


def compiled(graph: rlx.Graph, target: str = "cpu") -> Any:
    return rlx.compile(graph, target, precision="int8-activations" if target == "cpu" else None)


@pytest.mark.parametrize("target", ["cpu", "reference"])
def test_packed_weights_are_read_once_and_again_when_they_are_asked_for(target: str) -> None:
    graph, arrays = packed_model()
    reads, exe = Reads(arrays), compiled(graph, target)
    adopt(exe, reads.params)
    ids = np.arange(7)
    wanted = product(arrays["table"][ids], arrays["weight"])
    # activations have 8 bits: 64 roundings of at most 1/254 of the largest, which is below 4
    np.testing.assert_allclose(exe(ids), wanted, atol=0.3)
    assert reads.counts == {"table": 1, "weight": 1}
    held = exe.get_params()
    assert {k: np.array_equal(v, arrays[k]) for k, v in held.items()} == dict.fromkeys(arrays, True)
    assert reads.counts == {"table": 1, "weight": 2 if target == "cpu" else 1}


def test_new_weights_beside_those_of_a_file() -> None:
    """Only what follows from the new ones is made again."""
    graph, arrays = packed_model()
    reads, exe = Reads(arrays), compiled(graph)
    adopt(exe, reads.params)
    ids, new = np.arange(7), np.ones((50, 64), np.float32)
    exe.set_params({"table": new})
    first = exe(ids)
    np.testing.assert_allclose(first, product(new[ids], arrays["weight"]), atol=0.3)
    assert reads.counts["weight"] == 1
    exe.set_params({"weight": arrays["weight"][::-1].copy()})
    assert np.array_equal(exe(ids), first[:, ::-1])


def test_a_saved_program_has_the_weights_of_the_file(tmp_path: Any) -> None:
    graph, arrays = packed_model()
    exe = compiled(graph)
    adopt(exe, Reads(arrays).params)
    rlx.save(exe, tmp_path / "model.rlx")
    again, ids = rlx.load(tmp_path / "model.rlx"), np.arange(7)
    assert isinstance(again, rlx.Executable)
    assert np.array_equal(exe(ids), again(ids))
