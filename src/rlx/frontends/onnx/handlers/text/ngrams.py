"""N-grams of numbers, and of strings by their ids, counted.

The n-grams of one length are a trie: from a node of depth k, each element of the pool leads to at
most one of depth k + 1. All places of a row go down it at once, one look-up per element, so
that what it takes grows with the logarithm of the pool.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlx import ops
from rlx.core.dtype import DType
from rlx.core.errors import GraphError
from rlx.frontends.onnx.handlers import codes, handles
from rlx.frontends.onnx.handlers.ml.label_tables import as_ids, index_of, same_kind
from rlx.frontends.onnx.id_tensors import in_codes
from rlx.frontends.onnx.node_call import Call
from rlx.ir.mir import Node

Array = np.ndarray[Any, Any]
MAX_STEPS, MAX_COLUMNS = 1 << 10, 1 << 24
NONE = np.int64(-1)
"""The place of what is not in the pool."""


@dataclass(frozen=True, slots=True)
class Grams:
    """The n-grams of one length: a row of elements each, and where its count goes."""

    table: Array
    columns: Array


@handles("TfIdfVectorizer")
@codes
def count_grams(call: Call) -> Node:
    """How often n-grams of a pool occur in each row, their elements up to `max_skip_count` apart;
    then counts, whether there are any, or one of them by weights."""
    x = ops.cast(call.as_node(in_codes(call.value(0), call.importer.strings)), to=DType.I64)
    pool = call.attr("pool_strings", ()) or call.attr("pool_int64s", ())
    same_kind(call, call.value(0), pool, "elements")
    if not x.shape.rank:
        raise GraphError(f"{call.label}: operand 0 is one element, expected a row")
    total = max(call.required("ngram_indexes"), default=-1) + 1
    if not 0 < total <= MAX_COLUMNS or not len(pool):
        raise call.unsupported(f"it has {total} columns and {len(pool)} elements in its pool")
    lead = x.shape.dims[:-1]
    zeros = call.graph.constant(np.zeros((*(1 for _ in lead), total + 1), np.float32))
    counts = ops.expand(zeros, dims=(*lead, total + 1))
    for grams in _pools(call, as_ids(call, pool)):
        counts = _counted(call, x, grams, counts)
    return _weighted(call, ops.narrow(counts, axis=len(lead), start=0, length=total))


def _pools(call: Call, pool: Array) -> Iterator[Grams]:
    starts, columns = call.required("ngram_counts"), np.array(call.required("ngram_indexes"))
    low, high = call.required("min_gram_length"), call.required("max_gram_length")
    done = 0
    for n, (start, end) in enumerate(zip(starts, (*starts[1:], len(pool))), 1):
        count = (end - start) // n
        if count < 0 or start < 0 or end > len(pool) or done + count > len(columns):
            raise GraphError(f"{call.label}: its pool and where its n-grams begin do not match")
        if count and low <= n <= high:
            table = pool[start : start + n * count].reshape(count, n)
            yield Grams(table, columns[done : done + count])
        done += count


def _counted(call: Call, x: Node, grams: Grams, counts: Node) -> Node:
    """Counts, and one more for each place where an n-gram begins. What begins none is counted in a
    column behind the last, as are n-grams that would end past the row."""
    n, axis = grams.table.shape[1], x.shape.rank - 1
    most = call.required("max_skip_count") if n > 1 else 0
    if not 0 <= most < MAX_STEPS:
        raise call.unsupported(f"its elements may be more than {MAX_STEPS} apart")
    words, inverse = np.unique(grams.table, return_inverse=True)
    at, is_word = index_of(call, x, words)
    ranks = ops.where(is_word, at, NONE)
    numbers, last = inverse.reshape(grams.table.shape), counts.shape.dims[-1] - 1
    room = [0] * axis
    for step in range(1, 2 + most):
        padded = ops.pad(ranks, low=(0,) * x.shape.rank, high=(*room, (n - 1) * step), value=-1)
        parts = [
            ops.narrow(padded, axis=axis, start=k * step, length=x.shape.dims[-1]) for k in range(n)
        ]
        columns = _columns(call, parts, numbers, len(words), grams.columns, int(last))
        ones = ops.expand(call.graph.constant(np.float32(1)), dims=columns.shape.dims)
        counts = ops.scatter_elements(counts, columns, ones, axis=axis, reduction="add")
    return counts


def _columns(
    call: Call, parts: list[Node], numbers: Array, size: int, columns: Array, nowhere: int
) -> Node:
    """Where the n-gram that begins at each place is counted."""
    nodes, state = np.zeros(len(numbers), np.int64), None
    for depth, part in enumerate(parts):
        keys, inverse = np.unique(nodes * size + numbers[:, depth], return_inverse=True)
        key = part if state is None else ops.add(ops.mul(state, np.int64(size)), part)
        at, is_node = index_of(call, key, keys)
        is_there = ops.greater_equal(part, np.int64(0))
        if state is not None:
            is_there = ops.logical_and(is_there, ops.greater_equal(state, np.int64(0)))
        state, nodes = ops.where(ops.logical_and(is_there, is_node), at, NONE), inverse
    assert state is not None
    table = np.full(int(nodes.max()) + 1, nowhere, np.int64)
    table[nodes[::-1]] = columns[::-1]
    found = ops.gather(call.graph.constant(table), ops.maximum(state, np.int64(0)), axis=0)
    return ops.where(ops.greater_equal(state, np.int64(0)), found, np.int64(nowhere))


def _weighted(call: Call, counts: Node) -> Node:
    mode, weights = call.required("mode"), call.attr("weights", ())
    if mode == "IDF":
        counts = ops.minimum(counts, call.graph.constant(np.float32(1)))
    if mode not in ("TF", "IDF", "TFIDF"):
        raise GraphError(f"{call.label}: mode {mode[:40]!r} is not one ONNX has")
    return counts if mode == "TF" or not weights else ops.mul(counts, _row(call, weights))


def _row(call: Call, weights: Sequence[float]) -> Node:
    """Weights are those of n-grams in the order of the pool; each goes to its n-gram's column."""
    columns = call.required("ngram_indexes")
    if len(weights) != len(columns):
        raise GraphError(f"{call.label}: {len(weights)} weights for {len(columns)} n-grams")
    row = np.zeros(max(columns) + 1, np.float32)
    row[list(columns)] = weights
    return call.graph.constant(row)
