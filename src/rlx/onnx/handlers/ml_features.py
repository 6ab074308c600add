"""What ai.onnx.ml does to features before a model: scaling, filling in, encoding, choosing."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from rlx import ops
from rlx.dim import Dim, product
from rlx.dtype import DType
from rlx.errors import GraphError
from rlx.ir.mir import Node
from rlx.onnx.call import Call, NeedsShape
from rlx.onnx.handlers import handles
from rlx.onnx.handlers.ml_scores import ML, as_floats

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
        raise GraphError(f"{call.label}: {name} has {width} numbers for features of {x.shape}")


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
def one_hot_encoder(call: Call) -> Node:
    """A column for each category; floats count as the whole number towards 0. What is none of them
    has zeros, or is an error."""
    categories = call.attr("cats_int64s")
    if not categories:
        raise call.unsupported("its categories are strings. Encode them as integers")
    x = ops.cast(call.node(0), to=DType.I64)
    every = np.asarray(categories, np.int64)
    hits = ops.equal(ops.expand_dims(x, axes=(x.shape.rank,)), every)
    if call.attr("zeros", 1):
        return ops.cast(hits, to=DType.F32)
    is_none = ops.logical_not(ops.any(hits, axes=(x.shape.rank,), keepdims=True))
    every_case = ops.cast(ops.concat([hits, is_none], axis=x.shape.rank), to=DType.I32)
    first = ops.argmax(every_case, axis=x.shape.rank)
    return ops.gather(call.graph.constant(np.eye(len(every), dtype=np.float32)), first, axis=0)


@handles("LabelEncoder", domain=ML, since=2)
def label_encoder(call: Call) -> Node:
    """Numbers by a table of numbers: the first of equal keys counts."""
    keys, values, default = _table(call)
    x = call.node(0)
    keys, values = keys.astype(x.shape.dtype.numpy), values
    is_number = ~np.isnan(keys) if keys.dtype.kind == "f" else np.ones(len(keys), bool)
    order, first = np.unique(keys[is_number], return_index=True)
    made: Node = call.graph.constant(default)
    if len(order):
        at = ops.minimum(ops.searchsorted(order, x), np.int64(len(order) - 1))
        found = ops.gather(call.graph.constant(values[is_number][first]), at, axis=0)
        is_key = ops.equal(ops.gather(call.graph.constant(order), at, axis=0), x)
        made = ops.where(is_key, found, made)
    if not is_number.all() and call.version >= 4:
        made = ops.where(ops.isnan(x), values[np.argmin(is_number)], made)
    return ops.expand(made, dims=x.shape.dims)


def _table(call: Call) -> tuple[Array, Array, Array]:
    """Keys, values, and the value of what is no key."""
    found = {
        name[: name.index("_")]: (name, value)
        for name, value in call.attrs.items()
        if name.startswith(("keys_", "values_")) and len(value)
    }
    if set(found) != {"keys", "values"} or any(n.endswith("strings") for n, _ in found.values()):
        raise call.unsupported("it maps strings. Encode them as integers")
    (_, keys), (kind, values) = found["keys"], found["values"]
    dtype = {"values_floats": np.float32, "values_int64s": np.int64}.get(kind)
    made = np.asarray(values, dtype).reshape(-1)
    known = np.asarray(keys).reshape(-1)
    if made.dtype.kind not in "fiu" or known.dtype.kind not in "fiu" or len(made) != len(known):
        raise GraphError(f"{call.label}: {len(known)} keys have {len(made)} values")
    return known, made, _default(call, kind, made)


def _default(call: Call, kind: str, values: Array) -> Array:
    given = {
        "values_floats": call.attr("default_float", -0.0),
        "values_int64s": call.attr("default_int64", -1),
    }.get(kind, call.attr("default_tensor"))
    if given is None:
        given = -1 if values.dtype.kind in "iu" else -0.0
    return np.asarray(given).reshape(-1)[0].astype(values.dtype)


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
    """Inputs side by side, each cut or filled up with 0 to its width."""
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
        raise NeedsShape(f"{call.label}: input {number} has {have} features")
    if have >= width:
        return ops.narrow(x, axis=1, start=0, length=width)
    return ops.pad(x, low=(0, 0), high=(0, width - int(have)))
