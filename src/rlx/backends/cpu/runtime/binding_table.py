"""The binding table: all that the native way in knows of one model, as words."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np

from rlx.core.dlpack import CODES
from rlx.core.exchange import MAX_ORDERED

KEPT = 4
"""Blocks kept for each output, and for the arena."""


class Slot(IntEnum):
    """The words of a table."""

    NUM_INPUTS = 0
    NUM_OUTPUTS = 1
    NUM_PARAMS = 2
    NUM_SYMBOLS = 3
    NUM_NEEDS = 4
    RUN = 5
    CALL = 6
    POOL = 7
    THREADS = 8
    WEIGHTS = 9
    """The array of words that holds the current weights, an object; 0 before there are any."""
    INPUTS = 10
    """Address of a record for each input."""
    OUTPUTS = 11
    """Address of a record for each output."""
    ARENAS = 12
    """Address of the blocks kept for the arena."""
    INPUT_DIMS = 13
    """Where the dims of the inputs begin in the needs."""
    IS_CACHED = 14
    CACHED_SYMBOLS = 15
    """Address of the sizes for which the needs were evaluated last."""
    CACHED_NEEDS = 16
    ARRAY_TYPE = 17
    NEW_ARRAY = 18
    SET_BASE = 19
    SAVE_THREAD = 20
    RESTORE_THREAD = 21
    INC_REF = 22
    DEC_REF = 23
    CALL_OBJECT = 24
    NEW_TUPLE = 25
    SET_ITEM = 26
    NEW_INT = 27
    RUNS_ONCE = 28


NUM_SLOTS = 29


class InputSlot(IntEnum):
    """An input's record; then for each dim the number of the symbol it gives, or -1."""

    DESCR = 0
    RANK = 1
    ITEM_BYTES = 2
    CODE = 3
    """Its dtype as DLPack states it."""
    DIMS = 4


class OutputSlot(IntEnum):
    """An output's record; then its blocks."""

    DESCR = 0
    RANK = 1
    ITEM_BYTES = 2
    CODE = 3
    IS_MEASURED = 4
    BLOCKS = 5


class BlockSlot(IntEnum):
    """A kept block: its object, or 0; where it begins, and how long it is."""

    OBJECT = 0
    DATA = 1
    BYTES = 2


NUM_BLOCK_SLOTS = 3
NUM_OUTPUT_SLOTS = OutputSlot.BLOCKS + KEPT * NUM_BLOCK_SLOTS


class ViewSlot(IntEnum):
    """An input as it was read: its first byte, the address of its dims, and room for dims in
    another order than the object has them."""

    DATA = 0
    DIMS = 1
    ORDERED = 2


NUM_VIEW_SLOTS = ViewSlot.ORDERED + MAX_ORDERED


class Exchange(IntEnum):
    """The words of calls on objects of another library: see `core/exchange.py`."""

    TYPE = 0
    OTHER_TYPE = 1
    FROM_OBJECT = 2
    TO_OBJECT = 3
    POINTER = 4
    """Where in an object the pointer to its guarded word is, in bytes; 0 where nothing is."""
    GUARDED = 5
    REFUSED = 6
    """Bits of the guarded word that no object may have."""
    NUM_ARGUMENTS = 7
    SOURCES = 8
    """Address of a record for each input."""
    NUM_RESULTS = 9
    RESULTS = 10
    """Address of a record for each result."""
    IS_TUPLE = 11
    NUM_WATCHED = 12
    WATCHED = 13
    """Address of a record for each watched object."""
    STORAGE = 14
    DATA = 15
    OFFSET = 16
    COUNTER = 17
    NUMBER = 18
    MALLOC = 19
    FREE = 20
    IS_INITIALIZED = 21
    ENSURE = 22
    RELEASE = 23
    CLEAR = 24
    NO_MEMORY = 25
    DELETER = 26
    NUM_WRITTEN = 27
    WRITTEN = 28
    """Address of a record for each input that is written."""
    NUM_BLOCKS = 29
    BLOCKS = 30
    """Address of the digests of memory that calls have copies of."""
    NUM_SCANS = 31
    SCANS = 32
    """Address of the records by which the system says whether pages of it were written."""
    IOCTL = 33
    PAGEMAP = 34


NUM_EXCHANGE_SLOTS = 35


class SourceSlot(IntEnum):
    """An input of an exchange: the number of an argument or -1, the object, and the address of the
    order of its axes, or 0."""

    PLACE = 0
    OBJECT = 1
    ORDER = 2


NUM_SOURCE_SLOTS = 3


class ResultSlot(IntEnum):
    """A result of an exchange: its output, where the dims of that are in the needs, and the address
    of the order of its axes, or 0."""

    OUTPUT = 0
    DIMS = 1
    ORDER = 2


NUM_RESULT_SLOTS = 3


class HolderKind(IntEnum):
    """What holds the memory of an output: an object that is the result, a block that the result is
    made over, or a managed tensor that has the data behind it."""

    OBJECT = 0
    BLOCK = 1
    MANAGED = 2


class WatchSlot(IntEnum):
    """A watched object: the argument that must be it, or -1, and its state."""

    OBJECT = 0
    PLACE = 1
    STORAGE = 2
    DATA = 3
    OFFSET = 4
    NUMBER = 5


NUM_WATCH_SLOTS = 6


class WrittenSlot(IntEnum):
    """An input that calls write: its number, and the memory that is known to be no weight's."""

    INPUT = 0
    BEGIN = 1
    END = 2


NUM_WRITTEN_SLOTS = 3


def dlpack_code(dtype: np.dtype[Any]) -> int:
    """The dtype as the 32-bit word of a DLTensor; -1 where DLPack has none."""
    if dtype not in CODES:
        return -1
    code, bits = CODES[dtype]
    return code | bits << 8 | 1 << 16


@dataclass(frozen=True, slots=True)
class Input:
    """What is known of an input before it comes. What its dims must be, the model's own needs
    say; those that are a symbol's size by themselves give it."""

    dtype: np.dtype[Any]
    symbols: tuple[int | None, ...]
    """For each dim the number of the symbol whose size it is, or None."""


@dataclass(frozen=True, slots=True)
class Output:
    dtype: np.dtype[Any]
    rank: int
    is_measured: bool = False
    """Are its dims known only after the call?"""


@dataclass(frozen=True, slots=True)
class Binding:
    """How a model is called."""

    inputs: tuple[Input, ...]
    outputs: tuple[Output, ...]
    num_params: int = 0
    num_symbols: int = 0
    threads: int = 1
    has_host_steps: bool = False
    """Does Python take part? Such a call is never tried twice, so it goes step by step."""
    writes_states: bool = False
    """Does it write states? Such a call is never run twice, so a failure of it is final."""

    @property
    def num_needs(self) -> int:
        return self.input_dims + sum(len(i.symbols) for i in self.inputs) + 1

    @property
    def input_dims(self) -> int:
        """Where the dims of the inputs begin in the needs."""
        return 2 + sum(1 + o.rank for o in self.outputs)

    def needs_of(self, words: np.ndarray[Any, Any]) -> Needs:
        """The needs that a model wrote, by name."""
        values = [int(w) for w in words]
        outputs: list[tuple[int, tuple[int, ...]]] = []
        inputs: list[tuple[int, ...]] = []
        at = 2
        for output in self.outputs:
            outputs.append((values[at], tuple(values[at + 1 : at + 1 + output.rank])))
            at += 1 + output.rank
        for given in self.inputs:
            inputs.append(tuple(values[at : at + len(given.symbols)]))
            at += len(given.symbols)
        return Needs(values[0], values[1], tuple(outputs), tuple(inputs), values[at] == 0)

    def words_of(self, needs: Needs) -> list[int]:
        """The needs as a model writes them."""
        outputs = [w for size, dims in needs.outputs for w in (size, *dims)]
        inputs = [n for dims in needs.inputs for n in dims]
        is_out = int(not needs.is_in_range)
        return [needs.arena_bytes, needs.weight_bytes, *outputs, *inputs, is_out]


@dataclass(frozen=True, slots=True)
class Needs:
    """What a call takes, for some sizes of the named dims."""

    arena_bytes: int
    weight_bytes: int
    outputs: tuple[tuple[int, tuple[int, ...]], ...]
    """Bytes (at most) and dims of each."""
    inputs: tuple[tuple[int, ...], ...]
    """The dims that each must have."""
    is_in_range: bool

    @property
    def total_bytes(self) -> int:
        return self.arena_bytes + sum(size for size, _ in self.outputs)
