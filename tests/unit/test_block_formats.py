"""Quantised block formats: one expression, evaluated on whole arrays and position by position."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from rlx.core.dtype import DType
from rlx.core.errors import Error
from rlx.core.shape import Shape
from rlx.ir.mir import Graph
from rlx.ops.quant.block_arrays import decoded
from rlx.ops.quant.block_expr import (
    POSITION,
    BlockFormat,
    Const,
    Expr,
    Load,
    numbers,
    postorder,
    real,
    u8,
    u16,
)
from rlx.ops.quant.block_scaled import NUMBERS
from rlx.ops.quant.block_terms import Terms
from rlx.ops.quant.gguf_formats import SCHEMES

Array = np.ndarray[Any, Any]
FORMATS: Mapping[str, BlockFormat] = {**SCHEMES, **NUMBERS}
every_format = pytest.mark.parametrize("name", FORMATS)


def blocks_of(block_format: BlockFormat, seed: int) -> Array:
    """Every byte value at every offset, and any bytes."""
    rng, size = np.random.default_rng(seed), block_format.block_bytes
    same = np.repeat(np.arange(256, dtype=np.uint8)[:, None], size, axis=1)
    return np.concatenate([same, rng.integers(0, 256, (60, size), np.uint8)])


class Evaluator:
    """Terms on the bytes of many blocks at once."""

    def __init__(self, terms: Terms, rows: Array) -> None:
        self.terms, self.rows = terms, rows
        self.found: dict[Expr, Array] = {}

    def __call__(self, term: Expr) -> Array:
        for node in postorder(term):
            if node not in self.found:
                self.found[node] = self.value(node)
        return self.found[term]

    def value(self, node: Expr) -> Array:
        if isinstance(node, Const):
            return np.full(len(self.rows), node.value, node.dtype.numpy)
        if isinstance(node, Load):
            (at,) = node.args
            assert isinstance(at, Const)
            part = self.rows[:, int(at.value) : int(at.value) + node.dtype.itemsize]
            return np.ascontiguousarray(part).view(node.dtype.numpy)[:, 0]
        return numbers(node, tuple(self.found[a] for a in node.args))


def assert_same(got: Array, want: Array, what: str) -> None:
    """To the bit, but for the payload of NaN."""
    is_nan = np.isnan(want)
    np.testing.assert_array_equal(np.isnan(got), is_nan, what)
    unsigned = np.dtype(f"u{want.itemsize}")
    np.testing.assert_array_equal(got.view(unsigned)[~is_nan], want.view(unsigned)[~is_nan], what)


@every_format
def test_terms_are_the_expression_at_their_position(name: str) -> None:
    block_format = FORMATS[name]
    rows = blocks_of(block_format, 1)
    terms, want = Terms(block_format), decoded(block_format, rows)
    value = Evaluator(terms, rows)
    for position in range(block_format.weights):
        assert_same(value(terms.at(position)), want[:, position], f"{name} at {position}")


@every_format
def test_bounds_are_never_exceeded(name: str) -> None:
    block_format = FORMATS[name]
    terms = Terms(block_format)
    value = Evaluator(terms, blocks_of(block_format, 2))
    for position in range(0, block_format.weights, 5):
        value(terms.at(position))
    bounded = [(n, b) for n in value.found if (b := terms.bound(n)) is not None]
    assert bounded
    for node, bound in bounded:
        assert 0 <= value.found[node].min() <= value.found[node].max() <= bound, str(node)


def test_positions_go_on_in_the_next_block() -> None:
    block_format = SCHEMES["q5_0"]
    rows = blocks_of(block_format, 3)[-60:].reshape(20, -1)
    terms = Terms(block_format)
    want = decoded(block_format, rows.reshape(60, -1)).reshape(20, -1)
    value = Evaluator(terms, rows)
    for position in range(want.shape[1]):
        assert_same(value(terms.at(position)), want[:, position], str(position))


def test_loads_may_be_anywhere() -> None:
    """Offsets that are no strided view are gathered."""
    i = POSITION
    at = (i * i + 3) % 11
    block_format = BlockFormat(8, 12, real(u8(at)) + real(u16(at)))
    rows = blocks_of(block_format, 4)
    got = decoded(block_format, rows)
    for position in range(8):
        offset = (position * position + 3) % 11
        low, high = (rows[:, offset + n].astype(np.float32) for n in (0, 1))
        np.testing.assert_array_equal(got[:, position], low + (low + 256 * high))


@every_format
def test_lowerings_of_published_formats_gather_no_bytes(name: str) -> None:
    """Loads are strided views of the bytes; tq1_0's are three of them, concatenated."""
    block_format, g = FORMATS[name], Graph("decode")
    blocks = g.input("blocks", Shape((2, block_format.block_bytes), DType.U8))
    g.set_outputs([decoded(block_format, blocks)])
    found = [n for n in g.nodes if n.op == "gather" and blocks in n.inputs]
    assert not found
    concats = [n for n in g.nodes if n.op == "concat"]
    assert [len(n.inputs) for n in concats] == ([3] if name == "tq1_0" else [])


def test_equal_terms_are_the_same_object() -> None:
    terms = Terms(SCHEMES["q4_k"])
    first, second = (terms.at(p) for p in (0, 1))
    assert first.args[1] is second.args[1]  # the offset of their 32 weights
    assert first is not second


def test_mixed_dtypes_are_refused() -> None:
    with pytest.raises(Error, match="add of u8, u16: state the cast"):
        _ = u8(0) + u16(0)


def test_constants_keep_the_sign_of_zero() -> None:
    terms = Terms(SCHEMES["q8_0"])
    assert terms.const(0.0, DType.F32) is not terms.const(-0.0, DType.F32)
