"""Nodes of SIMT programs: what one thread of a grid does, in typed SSA form.

A node says what is computed and never how a target does it: a block's reduction is one node, which
a printer expands to shuffles, subgroup operations or shared memory. What only some targets have
(clusters, async copies, matrix tiles) is a node too; the lowering asks for the target's
capabilities before it uses one, so that no printer has to emulate.

Values are numbers of a `DType` or tiles of matrices. Indices count elements, never bytes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, Literal, TypeVar, cast, dataclass_transform

from rlx.core.dtype import DType
from rlx.program.types import TileType, Type, dtype_of

Number = bool | int | float
Class = TypeVar("Class", bound=type)


@dataclass_transform(frozen_default=True, eq_default=False)
def immutable(*, kw_only: bool = False) -> Callable[[Class], Class]:
    """A dataclass that type checkers hold to be frozen. At run time nothing does: a compile makes
    hundreds of thousands of them, and a frozen one takes three times as long."""
    return cast(Any, dataclass(eq=False, slots=True, kw_only=kw_only))


Scope = Literal["warp", "block", "cluster"]


@immutable()
class Value:
    """What a node makes, in every thread that executes it."""

    type: Type

    @property
    def dtype(self) -> DType:
        """Of the number, or of the tile's elements."""
        return dtype_of(self.type)


@immutable()
class Region:
    """Nodes in order. Values of enclosing regions are visible."""

    params: tuple[Value, ...] = ()
    nodes: tuple[Node, ...] = ()
    yields: tuple[Value, ...] = ()


@immutable(kw_only=True)
class Node:
    """One step. Subclasses add what is known when the program is made."""

    args: tuple[Value, ...] = ()
    results: tuple[Value, ...] = ()
    regions: tuple[Region, ...] = ()

    @property
    def result(self) -> Value:
        return self.results[0]

    @property
    def attrs(self) -> dict[str, object]:
        """What is not a value: the same names as the fields of the class."""
        return {name: getattr(self, name) for name in attr_names(type(self))}


@functools.cache
def attr_names(kind: type[Node]) -> tuple[str, ...]:
    return tuple(f.name for f in fields(kind) if f.name not in ("args", "results", "regions"))


# -- numbers --------------------------------------------------------------------------------------


@immutable(kw_only=True)
class Const(Node):
    """The same number in every thread."""

    value: Number


Place = Literal["thread", "lane", "warp", "block", "blocks", "rank"]


@immutable(kw_only=True)
class Position(Node):
    """Where the thread is (i32): its index in the block, in its warp, the warp's in the block, the
    block's in the grid, how many blocks there are, the block's rank in its cluster."""

    of: Place
    dim: int = 0
    """Of block and blocks."""


BinaryOp = Literal[
    "add", "sub", "mul", "div", "rem", "min", "max", "and", "or", "xor", "shl", "shr"
]


@immutable(kw_only=True)
class Binary(Node):
    """Two numbers of one dtype. Integers wrap; dividing by 0 and shifting by the width or more
    give any number; shr repeats the sign of signed numbers. min and max give NaN if either is."""

    op: BinaryOp


CompareOp = Literal["eq", "ne", "lt", "le", "gt", "ge"]


@immutable(kw_only=True)
class Compare(Node):
    """A truth value; with NaN, only ne holds."""

    op: CompareOp


UnaryOp = Literal["neg", "abs", "not", "floor", "ceil", "trunc", "round"]


@immutable(kw_only=True)
class Unary(Node):
    """Exact. not: of truth values, or of all bits; round: to nearest, ties to even."""

    op: UnaryOp


@immutable(kw_only=True)
class Call(Node):
    """A function of `functions.py`, with the accuracy stated there."""

    function: str
    accuracy: Literal["precise", "fast"] = "precise"


@immutable(kw_only=True)
class Fma(Node):
    """a · b + c, rounded once."""


@immutable(kw_only=True)
class Select(Node):
    """The second where the first holds, else the third."""


@immutable(kw_only=True)
class Convert(Node):
    """The same number in another dtype: to floats rounded to nearest even; floats to integers
    towards 0, and what does not fit gives any number; integers keep their low bits."""


@immutable(kw_only=True)
class Bitcast(Node):
    """The same bits in another dtype of the same size."""


# -- memory ---------------------------------------------------------------------------------------

Hint = Literal["", "stream", "keep"]
"""stream: it will not be read again; keep: it will be, soon."""
MAX_VECTOR_BYTES = 16


@immutable(kw_only=True)
class Load(Node):
    """`width` neighbours of a buffer, from a multiple of the width on; args: index, and a mask or
    none. Where the mask does not hold, nothing is read and the results are 0."""

    buffer: str
    hint: Hint = ""


@immutable(kw_only=True)
class Store(Node):
    """Values into neighbours of a buffer; args: index, mask or none (`has_mask`), values."""

    buffer: str
    has_mask: bool = False
    hint: Hint = ""


@immutable(kw_only=True)
class Atomic(Node):
    """One element combined with a value, whoever else does so; args: index, value, and a mask or
    none. Only for what does not depend on the order: integers, minima and maxima."""

    buffer: str
    op: Literal["add", "min", "max", "or", "and"]


@immutable(kw_only=True)
class SharedLoad(Node):
    """As `Load`, from the block's shared memory; with `is_remote`, the last argument is the rank
    of the block of the cluster whose memory is read."""

    memory: str
    has_mask: bool = False
    is_remote: bool = False


@immutable(kw_only=True)
class SharedStore(Node):
    """As `Store`, into the block's shared memory."""

    memory: str
    has_mask: bool = False


@immutable(kw_only=True)
class TableLoad(Node):
    """A number of a table that is part of the program; args: index."""

    table: str


# -- control --------------------------------------------------------------------------------------


@immutable(kw_only=True)
class For(Node):
    """args: low, high, step > 0, then the carried values; the body's params are the index and
    the carried values, and it yields the next ones."""


@immutable(kw_only=True)
class If(Node):
    """args: the condition; two regions that yield the results."""


@immutable(kw_only=True)
class While(Node):
    """args: the carried values; the first region yields whether to go on, the second the next
    values; both have the carried ones as params."""


# -- threads together -----------------------------------------------------------------------------


@immutable(kw_only=True)
class Barrier(Node):
    """All threads of the scope are here; what they wrote before is seen after."""

    scope: Scope = "block"


ReduceOp = Literal["add", "mul", "min", "max"]
"""min and max of truth values are all and any."""


@immutable(kw_only=True)
class Reduce(Node):
    """The combined value of a group of threads, in each of them.

    Neighbours first: threads t and t ^ 1 are combined, then t and t ^ 2, and so on, with nothing
    where a block ends. Every printer keeps this order, so floats have the same bits everywhere.
    A group is `width` threads in a row inside a warp, or the block. It orders no memory.
    """

    op: ReduceOp
    scope: Literal["warp", "block"]
    width: int = 0
    """Of a group inside a warp, a power of two."""


@immutable(kw_only=True)
class ReduceScatter(Node):
    """Of n values in each of a group of `width` ≥ n threads: thread t has the combined value
    number t·n // width. n + n/2 + … exchanges instead of n·log₂ width; the farthest first."""

    op: ReduceOp
    width: int


@immutable(kw_only=True)
class Scan(Node):
    """The combined value of the threads up to this one (inclusive), or before it (exclusive).
    At distances 1, 2, 4, …: that of t - d, if there is one, then the own."""

    op: ReduceOp
    scope: Literal["warp", "block"]
    width: int = 0
    is_inclusive: bool = True


@immutable(kw_only=True)
class Shuffle(Node):
    """The value of the thread whose lane differs by `mask` (xor): for targets with warps only."""

    mask: int


# -- matrix tiles ---------------------------------------------------------------------------------


@immutable(kw_only=True)
class TileFill(Node):
    """A tile of one number; args: the number."""


@immutable(kw_only=True)
class TileLoad(Node):
    """A tile from shared memory; args: index of its first element. Row r begins at index +
    r·pitch; of a transposed tile, column c. Those of operands begin at multiples of 16 bytes."""

    memory: str
    pitch: int
    is_transposed: bool = False


@immutable(kw_only=True)
class TileMul(Node):
    """a · b + c. Products of half floats are exact, sums are f32."""


@immutable(kw_only=True)
class WarpgroupMul(Node):
    """c + a · bᵀ by four warps together, for targets that multiply out of shared memory.

    a is 64×depth and b n×depth, of half floats in swizzled arrays with lines of 128 bytes; args: c,
    the index of a's first element and of b's, both at multiples of 8 lines; or, where a is in no
    array (`left` is empty), each warp's 16 rows of it in tiles of 16×16. Each warp holds 16 rows
    of c, a tile of 16×n: the first warp the first ones. It is done when the node is; or, if
    asynchronous, a group of its own, under way until a `WarpgroupWait`: until then c is nothing but
    the c of another one, and the operands stay as they are."""

    left: str
    right: str
    depth: int
    left_panel: int = 0
    """Elements from 64 rows to the next 64, where rows are contiguous: a line has 64 rows at one
    inner position; 0 where the inner positions are contiguous."""
    right_panel: int = 0
    is_async: bool = False


@immutable(kw_only=True)
class WarpgroupWait(Node):
    """All but the last `pending` products of the four warps are done, in each of them."""

    pending: int = 0


@immutable(kw_only=True)
class ProxyFence(Node):
    """What this thread wrote to shared memory is there for products of four warps, too, which
    otherwise see only what the copy engine wrote; for others' after a barrier or an arrival."""


@immutable(kw_only=True)
class RegisterLimit(Node):
    """From here on each thread of the four warps has so many registers: fewer, which leaves them
    to others, or more, which waits until others have left them."""

    count: int
    is_more: bool


@immutable(kw_only=True)
class TileStore(Node):
    """A tile into shared memory; args: index, tile."""

    memory: str
    pitch: int


@immutable(kw_only=True)
class TileElements(Node):
    """The elements of a tile that this thread holds."""


@immutable(kw_only=True)
class TilePack(Node):
    """A tile of the elements that threads hold."""


@immutable(kw_only=True)
class TilePlace(Node):
    """Row and column (i32) of each element that this thread holds: r0, c0, r1, c1, …"""

    tile: TileType


# -- asynchronous copies --------------------------------------------------------------------------


@immutable(kw_only=True)
class AsyncCopy(Node):
    """`width` neighbours of a buffer to shared memory; args: index there, index in the buffer, and
    a mask or none; without it, zeros are written. It belongs to the thread's next group."""

    memory: str
    buffer: str
    width: int


@immutable(kw_only=True)
class AsyncCommit(Node):
    """The thread's copies since the last commit are a group."""


@immutable(kw_only=True)
class AsyncWait(Node):
    """All but the last `pending` groups of this thread are done; other threads see them after a
    barrier."""

    pending: int = 0


@immutable(kw_only=True)
class MbarrierInit(Node):
    """The barrier (args: which of the array) completes a phase after `arrivals` and all expected
    bytes. Others may use it after a barrier of block or cluster."""

    mbarrier: str
    arrivals: int


@immutable(kw_only=True)
class MbarrierArrive(Node):
    """An arrival that expects `expected_bytes` more bytes; args: which, and with `is_remote` the
    rank of the block whose barrier it is."""

    mbarrier: str
    expected_bytes: int = 0
    is_remote: bool = False


@immutable(kw_only=True)
class MbarrierWait(Node):
    """Until the phase of this parity is complete; args: which, parity (0 for the first phase, then
    1, 0, …). A parity names only the next phase or the last one: nobody may be two phases behind.
    """

    mbarrier: str


@immutable(kw_only=True)
class BulkCopy(Node):
    """A box of a tensor map to shared memory, done by the copy engine and counted in bytes by a
    barrier; args: index there, row, column, which barrier, and the places in the outer dims. Of a
    map of windows, rows and outer places are where the first window starts, and the elements from
    there to the tap along each axis follow. Outside of the tensor it reads 0."""

    memory: str
    map: str
    mbarrier: str


@immutable(kw_only=True)
class Push(Node):
    """Values into the shared memory of a block of the cluster, counted in bytes by its barrier;
    args: rank, index, which barrier, values."""

    memory: str
    mbarrier: str


# -- dependent launch -----------------------------------------------------------------------------


@immutable(kw_only=True)
class ReleaseDependents(Node):
    """The next kernel may start; nothing where a target has no dependent launch."""


@immutable(kw_only=True)
class WaitDependencies(Node):
    """The kernels before are done and what they wrote is seen. Before it only constants are read,
    and nothing is written."""
