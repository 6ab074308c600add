"""Redundant casts."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from rlx import ops
from rlx.core.dtype import DType
from rlx.ir.mir import Node
from rlx.rules.engine import rule


def is_lossless(given: DType, to: DType) -> bool:
    """Does `to` hold every value of `given`?"""
    if given is to or given is DType.BOOL:
        return True
    if to is DType.BOOL or (given.is_complex and not to.is_complex):
        return False
    if given.is_integer and to.is_integer:
        held, room = np.iinfo(given.numpy), np.iinfo(to.numpy)
        return bool(room.min <= held.min and held.max <= room.max)
    if given.is_integer:
        return _digits(given) <= _digits(to.real) and _digits(given) <= _top(to.real)
    if to.is_integer:
        return False
    return _digits(given.real) <= _digits(to.real) and _top(given.real) <= _top(to.real)


def _digits(dtype: DType) -> int:
    """Significant binary digits."""
    if dtype.is_integer:
        info = np.iinfo(dtype.numpy)
        return info.bits - (info.min < 0)
    return int(ml_dtypes.finfo(dtype.numpy).nmant) + 1


def _top(dtype: DType) -> int:
    """The largest power of two that a float holds."""
    return int(ml_dtypes.finfo(dtype.numpy).maxexp) - 1


@rule(lambda x, to: ops.cast(x, to=to))
def cast_to_same(x: Node, to: DType) -> Any:
    """A cast to the dtype it has does nothing."""
    return x if x.dtype is to else None


@rule(lambda x, to, via: ops.cast(ops.cast(x, to=via), to=to))
def cast_round_trip(x: Node, to: DType, via: DType) -> Any:
    """A round trip through a dtype that holds every value is the identity."""
    return x if x.dtype is to and is_lossless(to, via) else None


@rule(lambda x, to, via: ops.cast(ops.cast(x, to=via), to=to))
def cast_through_wider(x: Node, to: DType, via: DType) -> Any:
    """A cast through a wider dtype of the same kind is the direct cast."""
    kinds = [(d.is_integer, d.is_float, d.is_complex) for d in (x.dtype, via)]
    if kinds[0] != kinds[1] or not is_lossless(x.dtype, via):
        return None
    return ops.cast(x, to=to)


@rule(lambda x, to, via: ops.cast(ops.cast(x, to=via), to=to))
def cast_of_bool_cast(x: Node, to: DType) -> Any:
    """A bool is 0 or 1 in every dtype, so the cast in between is redundant."""
    return ops.cast(x, to=to) if x.dtype is DType.BOOL else None


@rule(lambda x, to, via: ops.cast(ops.cast(x, to=via), to=to))
def cast_truncated_twice(x: Node, to: DType, via: DType) -> Any:
    """Truncating an integer twice is truncating it once."""
    if not (x.dtype.is_integer and via.is_integer and to.is_integer):
        return None
    return ops.cast(x, to=to) if to.itemsize <= via.itemsize <= x.dtype.itemsize else None
