"""SIMT programs: a grid of blocks of threads, its arguments, and the memory that a block shares.

    grid of blocks, a few neighbouring blocks a cluster, a block of threads, a warp of threads in it

The body is in `nodes.py`; `builder.py` makes programs, `text.py` prints them;
`program/verify.py` checks them, and `program/interpret/` runs them on NumPy.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from rlx.core.dim import DimLike
from rlx.core.dtype import DType
from rlx.program.nodes import Node, Region, Value
from rlx.program.tensor_map import TensorMap
from rlx.program.walk import walk

Access = Literal["read", "write", "update", "constant"]


@dataclass(frozen=True, slots=True)
class Buffer:
    """An argument in global memory. `constant`: no kernel of the run writes it, so it may be read
    before the kernels before this one are done."""

    name: str
    dtype: DType
    access: Access
    count: DimLike | None = None
    """Elements, where it is known."""

    @property
    def is_written(self) -> bool:
        return self.access in ("write", "update")


@dataclass(frozen=True, slots=True)
class Scalar:
    """A number as an argument: the value of a dim, if `dim` says so."""

    name: str
    value: Value
    dim: DimLike | None = None


@dataclass(frozen=True, slots=True)
class Shared:
    """Memory of a block. A swizzled one has its 16-byte chunks permuted within groups of eight
    128-byte rows, chunk ^ row % 8, so that columns of tiles are read without bank conflicts: every
    access goes through the same permutation, so programs do not see it."""

    name: str
    dtype: DType
    count: int
    align: int = 16
    is_swizzled: bool = False

    @property
    def size_bytes(self) -> int:
        return self.count * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class Table:
    """Numbers that are part of the program."""

    name: str
    dtype: DType
    values: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Mbarrier:
    """An array of barriers that count arrivals and bytes."""

    name: str
    count: int = 1


MBARRIER_BYTES = 8


@dataclass(frozen=True, slots=True)
class Program:
    """A kernel as a GPU runs it."""

    name: str
    grid: tuple[DimLike, DimLike, DimLike]
    """Blocks; the first is a multiple of the cluster."""
    block: int
    """Threads of a block."""
    body: Region
    buffers: tuple[Buffer, ...] = ()
    scalars: tuple[Scalar, ...] = ()
    maps: tuple[TensorMap, ...] = ()
    shared: tuple[Shared, ...] = ()
    mbarriers: tuple[Mbarrier, ...] = ()
    tables: tuple[Table, ...] = ()
    cluster: int = 1
    warp: int = 32
    """Threads of a warp, where the program counts on it; 1 where it does not."""
    resident: int = 0
    """Blocks that a processor is to hold at once, which bounds the registers of a thread; 0 where
    the assembler decides."""
    failures: tuple[str, ...] = ()
    """What the codes mean that it writes to a buffer of that name: 1 is the first."""

    @property
    def shared_bytes(self) -> int:
        """Of all shared memory, barriers included, at the offsets of `shared_offsets`."""
        return _end(self)[1]

    def buffer(self, name: str) -> Buffer:
        return next(b for b in self.buffers if b.name == name)

    def memory(self, name: str) -> Shared:
        return next(s for s in self.shared if s.name == name)

    def table(self, name: str) -> Table:
        return next(t for t in self.tables if t.name == name)

    @property
    def nodes(self) -> Iterator[Node]:
        """Every node, those of regions behind the node that holds them."""
        return walk(self.body)


def shared_offsets(program: Program) -> dict[str, int]:
    """The byte at which each shared array and barrier array starts."""
    return _end(program)[0]


def _end(program: Program) -> tuple[dict[str, int], int]:
    sizes = [(s.name, s.size_bytes, s.align) for s in program.shared]
    sizes += [(m.name, m.count * MBARRIER_BYTES, MBARRIER_BYTES) for m in program.mbarriers]
    found, end = dict[str, int](), 0
    for name, size, align in sizes:
        found[name] = -(-end // align) * align
        end = found[name] + size
    return found, end
