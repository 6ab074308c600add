"""N-grams of numbers, and of strings by their ids, counted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlx import ops
from rlx.dim import Dim, DimLike
from rlx.dtype import DType
from rlx.errors import GraphError
from rlx.ir.mir import Node
from rlx.onnx.call import Call, NeedsShape
from rlx.onnx.handlers import handles

MAX_STEPS, MAX_COLUMNS = 1 << 10, 1 << 24


@dataclass(frozen=True, slots=True)
class Grams:
    """The n-grams of one length: a row of numbers each, and where its count goes."""

    table: np.ndarray[Any, Any]
    columns: np.ndarray[Any, Any]


@handles("TfIdfVectorizer")
def count_grams(call: Call) -> Node:
    """How often n-grams of a pool occur in each row, their elements up to `max_skip_count` apart;
    then counts, whether there are any, or one of them by weights."""
    x = call.node(0)
    if "pool_strings" in call.attrs:
        raise call.unsupported("its pool is of strings, which rlx has not")
    if isinstance(x.shape.dims[-1], Dim):
        raise NeedsShape(f"{call.label}: rows have the size {x.shape.dims[-1]}")
    columns = call.required("ngram_indexes")
    total = max(columns) + 1
    if not 0 < total <= MAX_COLUMNS:
        raise call.unsupported(f"it has {total} columns")
    counts = call.graph.constant(np.zeros((*(1 for _ in x.shape.dims[:-1]), total), np.float32))
    for grams in _pools(call):
        counts = ops.add(counts, _counted(call, x, grams, total))
    counts = ops.expand(counts, dims=(*x.shape.dims[:-1], total))
    return _weighted(call, counts)


def _pools(call: Call) -> Iterator[Grams]:
    pool, starts = call.required("pool_int64s"), call.required("ngram_counts")
    columns = np.array(call.required("ngram_indexes"), np.int64)
    low, high = call.required("min_gram_length"), call.required("max_gram_length")
    done = 0
    for n, (start, end) in enumerate(zip(starts, (*starts[1:], len(pool))), 1):
        count = (end - start) // n
        if count < 0 or start < 0 or end > len(pool) or done + count > len(columns):
            raise GraphError(f"{call.label}: its pool and where its n-grams begin do not match")
        if count and low <= n <= high:
            table = np.array(pool[start : start + n * count], np.int64).reshape(count, n)
            yield Grams(table, columns[done : done + count])
        done += count


def _counted(call: Call, x: Node, grams: Grams, total: int) -> Node:
    """Matches of each n-gram, in the columns that count them."""
    n = grams.table.shape[1]
    length, rank = int(x.shape.dims[-1]), x.shape.rank
    apart = range(1, 2 + (call.required("max_skip_count") if n > 1 else 0))
    table = call.graph.constant(grams.table.astype(x.shape.dtype.numpy))
    into = np.zeros((len(grams.table), total), np.float32)
    into[np.arange(len(grams.table)), grams.columns] = 1
    found: Node = call.graph.constant(np.zeros((*(1 for _ in range(rank - 1)), total), np.float32))
    for step in apart:
        places = length - (n - 1) * step
        if places < 1:
            break
        if step > MAX_STEPS:
            raise call.unsupported(f"its elements may be more than {MAX_STEPS} apart")
        rows = [_shifted(x, k * step, places) for k in range(n)]
        windows = ops.concat(rows, axis=rank) if n > 1 else rows[0]
        hits = ops.all(ops.equal(ops.expand_dims(windows, axes=(rank,)), table), axes=(rank + 1,))
        per_gram = ops.sum(ops.cast(hits, to=DType.F32), axes=(rank - 1,))
        found = ops.add(found, ops.matmul(per_gram, call.graph.constant(into)))
    return found


def _shifted(x: Node, start: int, places: DimLike) -> Node:
    """The elements from a place on, each as a row of one."""
    axis = x.shape.rank - 1
    return ops.expand_dims(ops.narrow(x, axis=axis, start=start, length=places), axes=(axis + 1,))


def _weighted(call: Call, counts: Node) -> Node:
    mode, weights = call.required("mode"), call.attr("weights", ())
    if mode == "IDF":
        counts = ops.minimum(counts, call.graph.constant(np.float32(1)))
    if mode not in ("TF", "IDF", "TFIDF"):
        raise GraphError(f"{call.label}: mode {mode!r} is not one ONNX has")
    return counts if mode == "TF" or not weights else ops.mul(counts, _row(call, weights))


def _row(call: Call, weights: Sequence[float]) -> Node:
    return call.graph.constant(np.array(weights, np.float32))
