"""Lookup tables of ai.onnx.ml: categories, labels and vocabularies, of numbers or of string ids."""

from __future__ import annotations

from typing import Any

import numpy as np

from rlx import ops
from rlx.core.errors import GraphError
from rlx.frontends.onnx.handlers import codes, handles
from rlx.frontends.onnx.id_tensors import element_of, in_codes, meaning
from rlx.frontends.onnx.node_call import Call
from rlx.frontends.onnx.strings import TEXT
from rlx.frontends.onnx.values import Value
from rlx.ir.mir import Node

Array = np.ndarray[Any, Any]
ML = "ai.onnx.ml"


def is_text(words: Any) -> bool:
    """Are these strings, of an attribute or of a tensor?"""
    return len(words) > 0 and isinstance(np.asarray(words, object).reshape(-1)[0], str)


def as_ids(call: Call, words: Any) -> Array:
    """Words as numbers: strings as their ids."""
    if not is_text(words):
        return np.asarray(words).reshape(-1)
    return np.array(call.importer.strings.ids(np.asarray(words, object).reshape(-1)), np.int64)


def same_kind(call: Call, value: Value, words: Any, what: str) -> None:
    """The error of numbers looked up in strings, or strings in numbers."""
    if (element_of(value) is TEXT) != is_text(words):
        found, wanted = ("strings", "numbers") if element_of(value) else ("numbers", "strings")
        raise call.refused(f"its {what} are {found}, expected {wanted}")


def index_of(call: Call, x: Node, words: Any) -> tuple[Node, Node]:
    """Which of the words each element is, the first of equals, and whether it is one."""
    order, first = np.unique(as_ids(call, words).astype(x.shape.dtype.numpy), return_index=True)
    if order.dtype.kind in "iu" and int(order[-1]) - int(order[0]) < SPARSEST * len(order) + LEAST:
        return _by_table(call, x, order, first)
    at = ops.minimum(count_below(call, x, order), np.int64(len(order) - 1))
    is_word = ops.equal(ops.gather(call.graph.constant(order), at, axis=0), x)
    return ops.gather(call.graph.constant(first.astype(np.int64)), at, axis=0), is_word


SPARSEST, LEAST = 4, 1024
"""A table of all numbers from the least word to the greatest is made where it has at most so many
for each word, and so many more."""


def _by_table(call: Call, x: Node, order: Array, first: Array) -> tuple[Node, Node]:
    """Integers that are close together: one load each."""
    table = np.full(int(order[-1]) - int(order[0]) + 1, -1, np.int64)
    table[order - order[0]] = first
    is_inside = ops.logical_and(ops.greater_equal(x, order[0]), ops.less_equal(x, order[-1]))
    offset = ops.sub(ops.where(is_inside, x, order[0]), order[0])
    at = ops.gather(call.graph.constant(table), offset, axis=0)
    is_word = ops.logical_and(is_inside, ops.greater_equal(at, np.int64(0)))
    return ops.maximum(at, np.int64(0)), is_word


MOST_COMPARED = 16
"""Up to here, comparing with all is faster than halving."""


def count_below(call: Call, x: Node, order: Array) -> Node:
    """How many of sorted numbers are less than each element: by halving, log2(n) loads each."""
    if len(order) <= MOST_COMPARED:
        return ops.searchsorted(order, x)
    depth = len(order).bit_length()
    top = np.inf if order.dtype.kind == "f" else np.iinfo(order.dtype).max
    padded = np.full((1 << depth) - 1, top, order.dtype)
    padded[: len(order)] = order
    table = call.graph.constant(padded)
    found = ops.expand(call.graph.constant(np.int64(0)), dims=x.shape.dims)
    for bit in reversed(range(depth)):
        value = ops.gather(table, ops.add(found, np.int64((1 << bit) - 1)), axis=0)
        found = ops.where(ops.less(value, x), ops.add(found, np.int64(1 << bit)), found)
    return found


def looked_up(call: Call, keys: Any, values: Any, default: Any) -> Value:
    """The value of each key, or the default."""
    if len(keys) != len(values):
        raise GraphError(f"{call.label}: {len(keys)} keys have {len(values)} values")
    x = call.as_node(in_codes(call.value(0), call.importer.strings))
    if not len(keys):
        only = call.graph.constant(as_ids(call, [default])[0])
        return meaning(ops.expand(only, dims=x.shape.dims), TEXT if is_text([default]) else None)
    same_kind(call, call.value(0), keys, "elements")
    at, is_key = index_of(call, x, keys)
    found = ops.gather(call.graph.constant(as_ids(call, values)), at, axis=0)
    made = ops.where(is_key, found, as_ids(call, [default])[0])
    return meaning(made, TEXT if is_text(values) else None)


@handles("CategoryMapper", domain=ML)
@codes
def category_mapper(call: Call) -> Value:
    """Strings as numbers, or numbers as strings, by a table of pairs."""
    texts, numbers = (call.attr(f"cats_{kind}", ()) for kind in ("strings", "int64s"))
    if element_of(call.value(0)) is TEXT:
        return looked_up(call, texts, numbers, call.attr("default_int64", -1))
    return looked_up(call, numbers, texts, call.attr("default_string", "_Unused"))


@handles("LabelEncoder", domain=ML)
@codes
def label_encoder_of_classes(call: Call) -> Value:
    """Before version 2: strings as their places in a list, or places as strings."""
    texts = call.required("classes_strings")
    places = range(len(texts))
    if element_of(call.value(0)) is TEXT:
        return looked_up(call, texts, places, call.attr("default_int64", -1))
    return looked_up(call, places, texts, call.attr("default_string", "_Unused"))
