"""Feature preprocessing of ai.onnx.ml: scaling, imputation, encoding, selection."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from rlx import ops
from rlx.core.dim import Dim, product
from rlx.core.dtype import DType
from rlx.core.errors import GraphError
from rlx.core.shape import DimsDiffer, dims_differ
from rlx.frontends.onnx.handlers import codes, handles
from rlx.frontends.onnx.handlers.ml.label_tables import as_ids, is_text, looked_up, same_kind
from rlx.frontends.onnx.handlers.ml.scores import ML, as_floats
from rlx.frontends.onnx.id_tensors import element_of, in_codes, meaning
from rlx.frontends.onnx.node_call import Call
from rlx.frontends.onnx.values import Value
from rlx.ir.mir import Node

Array = np.ndarray[Any, Any]
LEAST_NORM = 1e-30
"""Rows of zeros stay so: they are divided by this."""


# -- elementwise ----------------------------------------------------------------------------------


@handles("Scaler", domain=ML)
def scaler(call: Call) -> Node:
    """(x - offset) · scale, in the precision of x; the result is f32."""
    x = as_floats(call.node(0))
    offset, scale = (_row(call, x, name) for name in ("offset", "scale"))
    return ops.cast(ops.mul(ops.sub(x, offset), scale), to=DType.F32)


def _row(call: Call, x: Node, name: str) -> Array:
    made = np.asarray(call.required(name), np.float32).astype(x.shape.dtype.numpy)
    _check_width(call, x, len(made), name)
    return made


def _check_width(call: Call, x: Node, width: int, name: str) -> None:
    if width != 1 and (not x.shape.rank or x.shape.dims[-1] != width):
        what = f"{call.label}: {name} has {width} numbers for features of {x.shape}"
        raise dims_differ(what, x.shape.dims[-1:], (width,))


@handles("Binarizer", domain=ML)
def binarizer(call: Call) -> Node:
    x = call.node(0)
    limit = np.asarray(call.attr("threshold", 0.0), np.float32)
    over = ops.greater(as_floats(x), limit.astype(as_floats(x).shape.dtype.numpy))
    return ops.cast(over, to=x.shape.dtype)


@handles("Imputer", domain=ML)
def imputer(call: Call) -> Node:
    """One value, or NaN, replaced by what its column says."""
    x = call.node(0)
    kind = "int64" if x.shape.dtype.is_integer else "float"
    filler = call.attr(f"imputed_value_{kind}s")
    if not filler:
        raise GraphError(f"{call.label}: imputed_value_{kind}s is missing")
    _check_width(call, x, len(filler), f"imputed_value_{kind}s")
    old = call.attr(f"replaced_value_{kind}", 0)
    is_old = ops.isnan(x) if math.isnan(old) else ops.equal(x, np.asarray(old, x.shape.dtype.numpy))
    return ops.where(is_old, np.asarray(filler).astype(x.shape.dtype.numpy), x)


@handles("Normalizer", domain=ML)
def normalizer(call: Call) -> Node:
    """Rows divided by their norm."""
    x = ops.cast(call.node(0), to=DType.F32)
    last, size = (x.shape.rank - 1,), ops.abs(x)
    match call.attr("norm", "MAX"):
        case "MAX":
            norm = ops.max(size, axes=last, keepdims=True)
        case "L1":
            norm = ops.sum(size, axes=last, keepdims=True)
        case "L2":
            norm = ops.sqrt(ops.sum(ops.mul(x, x), axes=last, keepdims=True))
        case other:
            raise GraphError(f"{call.label}: there is no norm {str(other)[:80]!r}")
    return ops.div(x, ops.maximum(norm, np.float32(LEAST_NORM)))


# -- categories -----------------------------------------------------------------------------------


@handles("OneHotEncoder", domain=ML)
@codes
def one_hot_encoder(call: Call) -> Node:
    """A column for each category; floats count as the whole number towards 0. What is none of them
    has zeros, or is an error."""
    categories = call.attr("cats_int64s", ()) or call.attr("cats_strings", ())
    if not categories:
        raise GraphError(f"{call.label}: it has no categories")
    same_kind(call, call.value(0), categories, "elements")
    x = ops.cast(call.as_node(in_codes(call.value(0), call.importer.strings)), to=DType.I64)
    every = as_ids(call, categories)
    hits = ops.equal(ops.expand_dims(x, axes=(x.shape.rank,)), every)
    if call.attr("zeros", 1):
        return ops.cast(hits, to=DType.F32)
    is_none = ops.logical_not(ops.any(hits, axes=(x.shape.rank,), keepdims=True))
    every_case = ops.cast(ops.concat([hits, is_none], axis=x.shape.rank), to=DType.I32)
    first = ops.argmax(every_case, axis=x.shape.rank)
    return ops.gather(call.graph.constant(np.eye(len(every), dtype=np.float32)), first, axis=0)


@handles("LabelEncoder", domain=ML, since=2)
@codes
def label_encoder(call: Call) -> Value:
    """Keys by a table of values, numbers or strings: the first of equal keys counts, and NaN is a
    key from version 4 on."""
    keys, values, default = _table(call)
    is_number = np.ones(len(keys), bool) if is_text(keys) else ~np.isnan(keys.astype(np.float64))
    made = looked_up(call, keys[is_number], values[is_number], default)
    if is_number.all() or call.version < 4:
        return made
    of_nan = as_ids(call, values[~is_number][:1])[0]
    chosen = ops.where(ops.isnan(call.node(0)), of_nan, call.as_node(made))
    return meaning(chosen, element_of(made))


def _table(call: Call) -> tuple[Array, Array, Any]:
    """Keys, values, and the value of what is no key."""
    found = {
        name[: name.index("_")]: (name, value)
        for name, value in call.attrs.items()
        if name.startswith(("keys_", "values_")) and len(value)
    }
    if set(found) != {"keys", "values"}:
        raise GraphError(f"{call.label}: it has no keys or no values")
    (_, keys), (kind, values) = found["keys"], found["values"]
    known, made = (_as_row(v) for v in (keys, values))
    if len(made) != len(known):
        raise GraphError(f"{call.label}: {len(known)} keys have {len(made)} values")
    return known, made, _default(call, kind, made)


def _as_row(values: Any) -> Array:
    """A tensor, or an attribute, whose floats are f32."""
    if is_text(values):
        return np.asarray(values, object).reshape(-1)
    row = np.asarray(values).reshape(-1)
    return row.astype(np.float32) if isinstance(values, tuple) and row.dtype.kind == "f" else row


def _default(call: Call, kind: str, values: Array) -> Any:
    given = {
        "values_floats": call.attr("default_float", -0.0),
        "values_int64s": call.attr("default_int64", -1),
        "values_strings": call.attr("default_string", "_Unused"),
    }.get(kind, call.attr("default_tensor"))
    if given is None:
        given = {"O": "_Unused", "f": -0.0}.get(values.dtype.kind, -1)
    first = np.asarray(given, object if is_text(values) else None).reshape(-1)[0]
    if isinstance(first, str) != is_text(values):
        raise GraphError(f"{call.label}: its default is of another type than its values")
    return first if is_text(values) else np.asarray(first).astype(values.dtype)


# -- columns --------------------------------------------------------------------------------------


@handles("ArrayFeatureExtractor", domain=ML)
def array_feature_extractor(call: Call) -> Node:
    """Some elements of the last axis; a row of them where there is no other."""
    x, which = call.node(0), call.node(1)
    flat = ops.reshape(which, dims=(product(which.shape.dims),))
    rows = ops.expand_dims(x, axes=(0,)) if x.shape.rank == 1 else x
    return ops.gather(rows, flat, axis=rows.shape.rank - 1)


@handles("FeatureVectorizer", domain=ML)
def feature_vectorizer(call: Call) -> Node:
    """The inputs concatenated, each cropped or zero-padded to its width."""
    widths = call.attr("inputdimensions", ())
    if len(widths) != call.num_inputs:
        raise GraphError(f"{call.label}: {len(widths)} inputdimensions, {call.num_inputs} inputs")
    return ops.concat([_fitted(call, i, int(w)) for i, w in enumerate(widths)], axis=1)


def _fitted(call: Call, number: int, width: int) -> Node:
    x = ops.cast(call.node(number), to=DType.F32)
    if x.shape.rank == 1:
        x = ops.expand_dims(x, axes=(1,))
    if x.shape.rank != 2 or width < 0:
        raise GraphError(f"{call.label}: input {number} is {x.shape}, of {width} features")
    have = x.shape.dims[1]
    if isinstance(have, Dim):
        raise DimsDiffer(f"{call.label}: input {number} has {have} features", have, width)
    if have >= width:
        return ops.narrow(x, axis=1, start=0, length=width)
    return ops.pad(x, low=(0, 0), high=(0, width - int(have)))
