"""States and what updates them against Python's lists, and attention over caches query by query."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import rlx
from rlx import ops
from rlx.core.shape import Shape
from rlx.ir.mir import Graph

SOURCES = {
    "state": "a Python list that is kept between calls",
    "append": "Python's lists, row by row",
    "assign": "the value itself",
    "cached_attention": "each query written out in Python over the keys that it sees",
}
RNG = np.random.default_rng(47)


@pytest.mark.parametrize("target", ["reference", "cpu"])
def test_state(target: str) -> None:
    """What a call leaves is what the next one finds; `init` is found by the first."""
    g = Graph("counter")
    x, seen = g.input("x", Shape((2,), "f32")), g.state("seen", [2], "f32", init=1.5)
    g.set_outputs([g.assign(seen, ops.add(seen, x))])
    session = rlx.compile(g, target, cache=False).session()
    kept = [1.5, 1.5]
    for _ in range(4):
        given = RNG.normal(size=2).astype(np.float32)
        kept = [float(np.float32(k) + v) for k, v in zip(kept, given)]
        assert np.asarray(session(given)).tolist() == kept


@pytest.mark.parametrize("at", [0, 1, 3])
def test_append(at: int) -> None:
    x, rows = RNG.normal(size=(5, 3)), RNG.normal(size=(2, 3))
    want = x.tolist()
    want[at : at + 2] = rows.tolist()
    assert ops.append(x, rows, np.int64(at), axis=0).tolist() == want
    assert ops.append(x.T.copy(), rows.T.copy(), np.int64(at), axis=1).T.tolist() == want


def test_append_with_a_position_for_each_entry() -> None:
    x, rows = RNG.normal(size=(3, 4, 2)), RNG.normal(size=(2, 1, 2))
    at, slots = np.array([3, 1]), np.array([2, 0])
    want = x.tolist()
    for row, start, entry in zip(rows.tolist(), at, slots):
        want[entry][start] = row[0]
    assert ops.append(x, rows, at, slots, axis=1).tolist() == want


@pytest.mark.parametrize("at", [-1, 4])
def test_rows_that_do_not_fit_are_an_error(at: int) -> None:
    with pytest.raises(rlx.Error, match="do not fit axis 0 of size 5"):
        ops.append(np.zeros((5, 3)), np.ones((2, 3)), np.int64(at), axis=0)


def test_assign() -> None:
    x, value = RNG.normal(size=(2, 2, 3))
    assert ops.assign(x, value).tolist() == value.tolist()


@pytest.mark.parametrize("window", [None, 1])
@pytest.mark.parametrize("slots", [None, [2, 0]])
def test_cached_attention(slots: list[int] | None, window: int | None) -> None:
    heads, kv, depth, queries, capacity = 4, 2, 3, 2, 6
    q = RNG.normal(size=(2, queries, heads * depth))
    keys, values = RNG.normal(size=(2, 2 if slots is None else 3, capacity, kv * depth))
    at = [3, 0]
    chosen: Any = None if slots is None else np.array(slots)
    how: dict[str, Any] = {"num_heads": heads, "kv_heads": kv, "window": window}
    got = ops.cached_attention(q, keys, values, np.array(at), chosen, **how)
    for row, start in enumerate(at):
        entry = row if slots is None else slots[row]
        for query in range(queries):
            for head in range(heads):
                want = _attended(q, keys, values, row, entry, query, start + query, head, window)
                found = got[row, query, head * depth : (head + 1) * depth]
                # f64: two sums of up to 6 products of about 1, and a softmax between them
                np.testing.assert_allclose(found, want, rtol=1e-12, atol=1e-12)


def test_quantised_caches_are_codes_times_the_scales_of_their_blocks() -> None:
    keys: Any
    values: Any
    keys, values = RNG.integers(-127, 128, (2, 2, 4, 64)).astype(np.int8)
    scales: Any = RNG.uniform(0.01, 0.02, (2, 2, 4, 2))
    q: Any = RNG.normal(size=(1, 2, 64))
    at: Any = np.array([1])
    slots: Any = np.array([1])
    plain: list[Any] = [
        np.array([[[c * s[e, r, i // 32] for i, c in enumerate(row)] for r, row in enumerate(rows)]
                  for e, rows in enumerate(x)])
        for x, s in ((keys, scales[0]), (values, scales[1]))
    ]  # fmt: skip
    found = ops.cached_attention(q, keys, values, at, slots, *scales, num_heads=2, kv_heads=2)
    wanted = ops.cached_attention(q, *plain, at, slots, num_heads=2, kv_heads=2)
    np.testing.assert_array_equal(found, wanted)
    with pytest.raises(rlx.Error, match="expected i8, as there are scales"):
        ops.cached_attention(q, *plain, at, slots, *scales, num_heads=2)
    with pytest.raises(rlx.Error, match="not whole blocks of 32 elements"):
        ops.cached_attention(q, keys, values, at, slots, *scales, num_heads=4)


def _attended(
    q: Any,
    keys: Any,
    values: Any,
    row: int,
    entry: int,
    query: int,
    place: int,
    head: int,
    window: int | None,
) -> list[float]:
    """One head of one query at a place: it sees what is not behind it, nor beyond the window."""
    depth, own = 3, head // 2 * 3
    first = 0 if window is None else max(0, place - window)
    asked = q[row, query, head * depth : (head + 1) * depth]
    seen = range(first, place + 1)
    scores = [
        sum(a * b for a, b in zip(asked, keys[entry, j, own : own + depth])) / math.sqrt(depth)
        for j in seen
    ]
    weights = [math.exp(s - max(scores)) for s in scores]
    return [
        sum(w * values[entry, j, own + d] for w, j in zip(weights, seen)) / sum(weights)
        for d in range(depth)
    ]
