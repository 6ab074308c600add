"""Weights that executables share: equal arrays are stored once, and packed once per program."""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np

from rlx.backends.base import Program
from rlx.core.arrays import as_array, frozen_copy
from rlx.core.dim import Dim
from rlx.core.params import Params
from rlx.ir.interface import Leaf
from rlx.ir.interpret import mismatch
from rlx.ops.op import Array

_CHUNK = 1 << 18
"""Bytes compared at a time, so that a difference is found before all has been read."""


class WeightSet:
    """Params, and what a program made of them. Nobody changes either."""

    __slots__ = ("__weakref__", "memory", "params", "program")

    def __init__(self, program: Program, params: Params, memory: Any) -> None:
        self.program, self.params, self.memory = program, params, memory


class Pool:
    """The weights in use. It keeps none alive: they go with the last executable that has them."""

    def __init__(self) -> None:
        self._arrays = weakref.WeakValueDictionary[tuple[Any, ...], Array]()
        self._sets = weakref.WeakValueDictionary[tuple[int, ...], WeightSet]()

    def frozen(self, name: str, array: Array) -> Array:
        """`array` as it is now: later changes to it do not count."""
        key = (name, array.dtype, array.shape)
        known = self._arrays.get(key)
        if known is not None and _is_same(known, array):
            return known
        copy = self._arrays[key] = frozen_copy(array)
        return copy

    def prepared(self, program: Program, params: Params, old: WeightSet | None) -> WeightSet:
        """The program's own form of frozen params; `old` has what did not change."""
        key = (id(program), *(params.identity(n.name) for n in program.interface.params))
        found = self._sets.get(key)
        if found is None:
            memory = prepared(program, params, old.memory if old else None)
            found = self._sets[key] = WeightSet(program, params, memory)
        return found


def prepared(program: Program, params: Params, old: Any = None) -> Any:
    """What a program makes of params, which are arrays for those that do not take sources."""
    return program.prepare(params if program.streams_params else dict(params), old)


def _is_same(a: Array, b: Array) -> bool:
    """Have two arrays of one dtype and shape the same bytes?"""
    if not b.flags.c_contiguous:
        return a.tobytes() == b.tobytes()
    left, right = (x.reshape(-1).view(np.uint8) for x in (a, b))
    starts = range(0, left.size, _CHUNK)
    return all(np.array_equal(left[i : i + _CHUNK], right[i : i + _CHUNK]) for i in starts)


def checked(leaf: Leaf, value: Any) -> Array:
    """The weight as given, if it is what the model declares."""
    array = as_array(value, f"param {leaf.name!r}", leaf.shape.dtype)
    fits = array.ndim == leaf.shape.rank and all(
        isinstance(d, Dim) or d == size for d, size in zip(leaf.shape.dims, array.shape)
    )
    if array.dtype != leaf.shape.dtype.numpy or not fits:
        raise mismatch(leaf, array)
    return array
