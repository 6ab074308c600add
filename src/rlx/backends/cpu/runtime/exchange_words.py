"""Calls on objects of another library as the words that native code reads."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import numpy as np

from rlx.backends.cpu.runtime.binding_table import (
    NUM_EXCHANGE_SLOTS,
    Binding,
    Exchange,
)
from rlx.backends.cpu.runtime.cpython_layout import exchange_functions
from rlx.core.exchange import ExchangeCall, Given, Held, Watched
from rlx.core.memory_digests import MemoryDigests
from rlx.ops.op import Array

_MASK = (1 << 64) - 1


class ExchangeWords:
    """The words of a call; they are valid as long as this lives."""

    def __init__(self, call: ExchangeCall, binding: Binding, deleter: int) -> None:
        self._call = call
        """It holds the objects that the words point to."""
        self._axes = [None if (o := _order(s)) is None else _array(o) for s in call.sources]
        pairs = zip(call.sources, self._axes)
        self._sources = _array([w for s, o in pairs for w in (*_source(s), _address(o))])
        self._orders = [None if order is None else _array(order) for _, order in call.results]
        self._results = _array(self._result_words(binding))
        self._watched = _array([w for one in call.watched for w in _watched(one)])
        self._words = _array([0] * NUM_EXCHANGE_SLOTS)
        known = {**self._known(), **_class_words(call), Exchange.DELETER: deleter}
        for slot, value in known.items():
            self._words[slot] = ctypes.c_int64(value & _MASK).value
        self._words[Exchange.MALLOC : Exchange.NO_MEMORY + 1] = exchange_functions()

    @property
    def address(self) -> int:
        return self._words.ctypes.data

    def _known(self) -> dict[Exchange, int]:
        call = self._call
        return {
            Exchange.NUM_ARGUMENTS: call.num_arguments,
            Exchange.SOURCES: self._sources.ctypes.data,
            Exchange.NUM_RESULTS: len(call.results), Exchange.RESULTS: self._results.ctypes.data,
            Exchange.IS_TUPLE: int(call.is_tuple or len(call.results) != 1),
            Exchange.NUM_WATCHED: len(call.watched), Exchange.WATCHED: self._watched.ctypes.data,
            Exchange.NUM_WRITTEN: 0 if call.written is None else len(call.written),
            Exchange.WRITTEN: 0 if call.written is None else call.written.ctypes.data,
            **_digest_words(call.digests),
        }  # fmt: skip

    def _result_words(self, binding: Binding) -> list[int]:
        words: list[int] = []
        for (output, _), order in zip(self._call.results, self._orders):
            before = sum(1 + o.rank for o in binding.outputs[:output])
            words += [output, 2 + before + 1, _address(order)]
        return words


def _digest_words(digests: MemoryDigests | None) -> dict[Exchange, int]:
    """What is read before a call, and what the system is asked for."""
    if digests is None:
        return {}
    words = {Exchange.NUM_BLOCKS: len(digests.always), Exchange.BLOCKS: digests.always.ctypes.data}
    if digests.pages is not None:
        kernel, scans = digests.pages.kernel, digests.pages.scans
        words |= {
            Exchange.NUM_SCANS: len(scans), Exchange.SCANS: scans.ctypes.data,
            Exchange.IOCTL: kernel.ioctl, Exchange.PAGEMAP: kernel.pages,
        }  # fmt: skip
    return words


def _class_words(call: ExchangeCall) -> dict[Exchange, int]:
    kind, guard, versions = call.kind, call.kind.guard, call.kind.versions
    words = {
        Exchange.TYPE: id(kind.types[0]), Exchange.OTHER_TYPE: id(kind.types[-1]),
        Exchange.FROM_OBJECT: kind.tensor_from_object, Exchange.TO_OBJECT: kind.managed_to_object,
    }  # fmt: skip
    if guard is not None:
        words |= {
            Exchange.POINTER: guard.pointer, Exchange.GUARDED: guard.word,
            Exchange.REFUSED: ~guard.allowed,
        }  # fmt: skip
    if versions is not None:
        words |= {
            Exchange.STORAGE: versions.storage, Exchange.DATA: versions.data,
            Exchange.OFFSET: versions.offset, Exchange.COUNTER: versions.counter,
            Exchange.NUMBER: versions.number,
        }  # fmt: skip
    return words


def _source(source: Given | Held) -> tuple[int, int]:
    return (-1, id(source.value)) if isinstance(source, Held) else (source.place, 0)


def _order(source: Given | Held) -> tuple[int, ...] | None:
    return source.order if isinstance(source, Given) else None


def _address(words: Array | None) -> int:
    return 0 if words is None else words.ctypes.data


def _watched(one: Watched) -> tuple[int, ...]:
    place = -1 if one.place is None else one.place
    return id(one.value), place, *one.state


def _array(words: Sequence[int]) -> Array:
    """At least one word, so that there is an address."""
    return np.array([ctypes.c_int64(w & _MASK).value for w in (*words, 0)], np.int64)
