"""What a WGSL module is to whoever runs it: its bindings, its params, and its text.

Group 0 has the buffers at bindings 0, 1, …, and behind the last of them a uniform block of words:

    per buffer  the index of its first element, counted in its dtype from where its binding begins
    per scalar  one word, or two of 64 bits, the low one first
    the grid    its blocks along x, y and z
    the fold    workgroups along x of the dispatch, of which a row after another is counted
    zero        which no compiler knows to be 0

Every buffer may have a binding of its own, or share one with others of the same GPU buffer: the
binding of each is an argument of `source`, and the body of the kernel is the same for all of them.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Literal

from rlx.backends.wgpu.wgsl.bindings import Access, binding_text
from rlx.core.dtype import DType

ENTRY = "k_main"
"""The entry point of every text: kernels that differ in their names alone share a pipeline."""
MAX_WORKGROUPS = 65535
"""Along each dim of a dispatch: the limit that every adapter has."""
PARAMS_ALIGN = 16
Feature = Literal["shader-f16"]
Grid = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Target:
    """What WGSL of an adapter has beyond the core language."""

    has_f16: bool = False
    """The feature shader-f16."""
    shared_bytes: int = 16 << 10
    """Of a block's shared memory."""


@dataclass(frozen=True, slots=True)
class Argument:
    """A buffer or a scalar of the kernel."""

    name: str
    dtype: DType


@dataclass(frozen=True, slots=True)
class Module:
    """One kernel."""

    name: str
    """As it is reported."""
    block: int
    buffers: tuple[Argument, ...]
    """In the order of their bindings, if each has its own."""
    scalars: tuple[Argument, ...]
    accesses: tuple[Access, ...]
    """How the body reads and writes them."""
    head: str
    body: str
    shared_bytes: int = 0
    features: tuple[Feature, ...] = ()
    """That a device must have been asked for."""

    @property
    def separate(self) -> tuple[int, ...]:
        """A binding for each buffer."""
        return tuple(range(len(self.buffers)))

    @property
    def merged(self) -> tuple[int, ...]:
        """One binding for all buffers."""
        return (0,) * len(self.buffers)

    def source(self, bindings: Sequence[int] | None = None) -> str:
        """The text, with buffer i at binding `bindings[i]`: numbers from 0 on without a gap;
        each at its own if none are given."""
        given = self.separate if bindings is None else tuple(bindings)
        dtypes = tuple(b.dtype for b in self.buffers)
        text = binding_text(self.accesses, dtypes, given, self.members)
        return f"{self.head}{text}{self.body}"

    @property
    def members(self) -> list[str]:
        """Of the uniform block."""
        members = [f"b{i}: u32" for i in range(len(self.buffers))]
        for i, scalar in enumerate(self.scalars):
            members += [f"s{i}{part}: u32" for part in "lh"[: words_of(scalar.dtype)]]
        return members + [f"g{d}: u32" for d in "xyz"] + ["fold: u32", "zero: u32"]

    @property
    def params_bytes(self) -> int:
        """Of the uniform block, as a binding of it is sized."""
        words = len(self.buffers) + sum(words_of(s.dtype) for s in self.scalars) + 5
        return -(-words * 4 // PARAMS_ALIGN) * PARAMS_ALIGN

    def params(self, firsts: Sequence[int], scalars: Sequence[float], grid: Grid) -> bytes:
        """The uniform block: the first element of each buffer, each scalar, and the grid."""
        made = struct.pack(f"<{len(firsts)}I", *firsts)
        for scalar, value in zip(self.scalars, scalars, strict=True):
            made += scalar_words(scalar.dtype, value)
        made += struct.pack("<5I", *grid, dispatch(grid)[0], 0)
        return made.ljust(self.params_bytes, b"\0")

    def to_bytes(self) -> bytes:
        """A JSON document, from which `of_bytes` makes it again."""
        fields = asdict(self)
        for kind in ("buffers", "scalars"):
            fields[kind] = [(a.name, a.dtype.value) for a in getattr(self, kind)]
        return json.dumps(fields, separators=(",", ":"), ensure_ascii=False).encode()

    @classmethod
    def of_bytes(cls, raw: bytes) -> Module:
        fields = json.loads(raw)
        for kind in ("buffers", "scalars"):
            fields[kind] = tuple(Argument(n, DType(d)) for n, d in fields[kind])
        fields["accesses"] = tuple(Access(**a) for a in fields["accesses"])
        fields["features"] = tuple(fields["features"])
        return cls(**fields)


def words_of(dtype: DType) -> int:
    return 2 if dtype.itemsize == 8 else 1


def scalar_words(dtype: DType, value: float) -> bytes:
    """A scalar as the uniform block has it."""
    if dtype is DType.F32:
        return struct.pack("<f", value)
    bits = 32 * words_of(dtype)
    return (int(value) & ((1 << bits) - 1)).to_bytes(bits // 8, "little")


def dispatch(grid: Grid) -> Grid:
    """Workgroups that are dispatched for the blocks of a grid: rows of at most the limit, as even
    as possible; those behind the last block end at once."""
    blocks = grid[0] * grid[1] * grid[2]
    rows = max(1, -(-blocks // MAX_WORKGROUPS))
    return -(-blocks // rows), rows, 1
