"""Weights by name. One that a file has is read when it is asked for, and need not stay in memory:
what a program packed it into is enough to run, and whoever wants the weight itself reads it again.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Read = Callable[[], Array]


class Source:
    """Where a weight comes from: memory, or a function that reads it, which is called again when
    nobody holds what it gave before."""

    __slots__ = ("_array", "_last", "_read")

    def __init__(self, array: Array | None = None, read: Read | None = None) -> None:
        self._array, self._read = array, read
        self._last: weakref.ref[Array] | None = None

    @property
    def identity(self) -> int:
        """Equal, of two that live, for the same weight."""
        return id(self if self._array is None else self._array)

    def array(self) -> Array:
        found = self._array if self._last is None else self._last()
        if found is not None:
            return found
        assert self._read is not None
        made = self._read()
        self._last = weakref.ref(made)
        return made


class Params(Mapping[str, Array]):
    """Weights by name, each from its source."""

    __slots__ = ("_sources",)

    def __init__(self, sources: Mapping[str, Source]) -> None:
        self._sources = dict(sources)

    @classmethod
    def of(cls, params: Mapping[str, Array]) -> Params:
        """Arrays, which are held; what has sources keeps them."""
        if isinstance(params, Params):
            return params
        return cls({name: Source(array) for name, array in params.items()})

    @classmethod
    def reading(cls, reads: Mapping[str, Read]) -> Params:
        """Weights that functions read, each of them a new array that nobody changes."""
        return cls({name: Source(read=read) for name, read in reads.items()})

    def identity(self, name: str) -> int:
        """By which one can see, of two that live, that a weight is the same."""
        return self._sources[name].identity

    def without(self, names: Collection[str]) -> Params:
        return Params({k: s for k, s in self._sources.items() if k not in names})

    def __or__(self, others: Params) -> Params:
        """These, but for those that the others have, too."""
        return Params(self._sources | others._sources)

    def __getitem__(self, name: str) -> Array:
        return self._sources[name].array()

    def __contains__(self, name: object) -> bool:
        return name in self._sources

    def __iter__(self) -> Iterator[str]:
        return iter(self._sources)

    def __len__(self) -> int:
        return len(self._sources)
