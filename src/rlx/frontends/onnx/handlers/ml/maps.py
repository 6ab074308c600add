"""Maps of ai.onnx.ml: a map is two rows, its keys and its values; maps of the same keys are a
matrix."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rlx import ops
from rlx.core.dim import Dim
from rlx.core.dtype import DType
from rlx.core.errors import GraphError
from rlx.frontends.onnx.handlers import codes, handles
from rlx.frontends.onnx.handlers.ml.label_tables import index_of, same_kind
from rlx.frontends.onnx.handlers.tensor.cast import cast_to
from rlx.frontends.onnx.id_tensors import element_of, in_codes, meaning
from rlx.frontends.onnx.node_call import Call
from rlx.frontends.onnx.strings import TEXT
from rlx.frontends.onnx.values import Pairs, Records, Value
from rlx.ir.mir import Node

ML = "ai.onnx.ml"


@handles("ZipMap", domain=ML)
def zip_map(call: Call) -> Records:
    """Rows of scores as maps from the labels to them."""
    keys: Sequence[Any] = call.attr("classlabels_strings", ()) or call.attr(
        "classlabels_int64s", ()
    )
    scores = call.node(0)
    if scores.shape.rank == 1:
        scores = ops.expand_dims(scores, axes=(0,))
    if scores.shape.rank != 2 or (width := scores.shape.dims[1]) not in (len(keys), *_open(width)):
        raise GraphError(f"{call.label}: {len(keys)} labels for scores of {scores.shape}")
    return Records(tuple(keys), ops.expand(scores, dims=(scores.shape.dims[0], len(keys))))


def _open(dim: Any) -> tuple[Any, ...]:
    return (dim,) if isinstance(dim, Dim) else ()


def pairs_of(call: Call) -> tuple[Node, Node]:
    """The keys and values of a map, strings as ids."""
    found = call.value(0)
    if not isinstance(found, Pairs):
        raise GraphError(f"{call.label}: operand 0 is no map")
    strings = call.importer.strings
    keys, values = (call.as_node(in_codes(v, strings)) for v in (found.keys, found.values))
    return keys, values


def _pairs(call: Call) -> Pairs:
    found = call.value(0)
    assert isinstance(found, Pairs)
    return found


@handles("DictVectorizer", domain=ML)
@codes
def dict_vectorizer(call: Call) -> Value:
    """The value of each word of a vocabulary, 0 where the map has none; other keys are left out."""
    keys, values = pairs_of(call)
    words = call.attr("string_vocabulary", ()) or call.attr("int64_vocabulary", ())
    same_kind(call, _pairs(call).keys, words, "keys")
    at, is_word = index_of(call, keys, words)
    made = _scattered(call, ops.where(is_word, at, np.int64(len(words))), values, len(words))
    return meaning(made, element_of(_pairs(call).values))


def _scattered(call: Call, at: Node, values: Node, width: int) -> Node:
    """[1, width]: values at their places; the place behind the last takes what has none."""
    room = call.graph.constant(np.zeros(width + 1, values.shape.dtype.numpy))
    row = ops.narrow(ops.scatter(room, at, values, axis=0), axis=0, start=0, length=width)
    return ops.expand_dims(row, axes=(0,))


CASTS = {"TO_FLOAT": DType.F32, "TO_INT64": DType.I64, "TO_STRING": TEXT}


@handles("CastMap", domain=ML)
@codes
def cast_map(call: Call) -> Value:
    """The values of a map in the order of its keys, or each at the place that its key is."""
    keys, values = pairs_of(call)
    to, form = call.attr("cast_to", "TO_FLOAT"), call.attr("map_form", "DENSE")
    if to not in CASTS or form not in ("DENSE", "SPARSE") or element_of(_pairs(call).keys):
        raise GraphError(f"{call.label}: cast_to {to!r}, map_form {form!r} is not what ONNX has")
    if form == "DENSE":
        row = ops.gather(values, ops.argsort(keys, axis=0), axis=0)
        made = ops.expand_dims(row, axes=(0,))
    else:
        width = int(call.attr("max_map", 1))
        fits = ops.logical_and(
            ops.greater_equal(keys, np.int64(0)), ops.less(keys, np.int64(width))
        )
        made = _scattered(call, ops.where(fits, keys, np.int64(width)), values, width)
    return cast_to(call, meaning(made, element_of(_pairs(call).values)), CASTS[to])
