"""Register transposes: square blocks of a matrix, as many vectors as one has lanes."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

from rlx.backends.cpu.codegen.gemm.microkernel import below
from rlx.backends.cpu.codegen.loop.vector_access import advanced, load, store
from rlx.backends.cpu.isa import Isa
from rlx.backends.cpu.llvm.builder import Code
from rlx.backends.cpu.llvm.values import Bound, Vec
from rlx.core.dtype import DType


def transposed(vectors: Sequence[Vec]) -> list[Vec]:
    """Lane j of vector i becomes lane i of vector j: blocks of 1, 2, 4 … are exchanged across the
    diagonal."""
    made, lanes = list(vectors), len(vectors)
    size = 1
    while size < lanes:
        for i in (i for i in range(lanes) if not i & size):
            made[i], made[i + size] = _exchanged(made[i], made[i + size], size)
        size *= 2
    return made


def horizontal_sums(vectors: Sequence[Vec]) -> Vec:
    """Horizontal sums: that of vector i in lane i. Blocks of 1, 2, 4 … are exchanged and added, so
    that half of the vectors are left each time."""
    made, size = list(vectors), 1
    while len(made) > 1:
        pairs = zip(made[::2], made[1::2])
        made = [a + b for a, b in (_exchanged(x, y, size) for x, y in pairs)]
        size *= 2
    return made[0]


Line = tuple[str, Bound]
"""The address of a square in memory, and the stride of its lines, whose elements are contiguous."""


def transpose_square(code: Code, dtype: DType, given: Line, to: Line) -> None:
    """Transpose a square in memory: to[j, i] = given[i, j]. Not inlined, as LLVM takes long over
    shuffles."""
    _called(code, dtype, given, to)


def transpose_partial_square(
    code: Code, dtype: DType, given: Line, to: Line, size: tuple[Bound, Bound]
) -> None:
    """The same for a partial square, of only so many lines with only so many elements each: missing
    lines are zeros, and missing elements are not stored."""
    _called(code, dtype, given, to, *size)


def _called(code: Code, dtype: DType, given: Line, to: Line, *size: Bound) -> None:
    name = f"turn{'_part' if size else ''}.{dtype.value}.{code.lanes}"
    code.shared.update(_transpose_function(name, dtype, code.lanes, code.isa, bool(size)))
    (source, across), (target, along) = given, to
    args = [f"ptr {source}, i64 {across}, ptr {target}, i64 {along}", *(f"i64 {n}" for n in size)]
    code.do(f"call void @{name}({', '.join(args)})")


@functools.lru_cache(maxsize=64)
def _transpose_function(
    name: str, dtype: DType, lanes: int, isa: Isa, is_part: bool
) -> tuple[tuple[str, str], ...]:
    code, args = Code(lanes, isa), "ptr %given, i64 %across, ptr %to, i64 %along"
    loads: list[Vec | None] = [None] * lanes
    stores = loads
    if is_part:
        args += ", i64 %lines, i64 %elements"
        loads = [_only(code, i, "%lines", "%elements") for i in range(code.lanes)]
        stores = [_only(code, i, "%elements", code.lanes) for i in range(code.lanes)]
    lines = [code.i64("mul", "%across", n) for n in range(code.lanes)]
    places = [advanced(code, "%given", line, dtype) for line in lines]
    found = [load(code, dtype, p, 1, m) for p, m in zip(places, loads)]
    for n, (vector, mask) in enumerate(zip(transposed(found), stores)):
        place = advanced(code, "%to", code.i64("mul", "%along", n), dtype)
        store(code, vector, dtype, place, 1, mask)
    code.do("ret void")
    code.shared[name] = code.function(f"define internal void @{name}({args}) noinline")
    return tuple(code.shared.items())


def _only(code: Code, number: int, limit: Bound, count: Bound) -> Vec:
    """The first lanes if the index is below a limit, else none."""
    is_there = code.compare("lt", number, limit)
    return below(code, code.choose(is_there, count, 0))


def _exchanged(a: Vec, b: Vec, size: int) -> tuple[Vec, Vec]:
    lanes = range(a.code.lanes)
    first = [n + len(lanes) - size if n & size else n for n in lanes]
    second = [n + len(lanes) if n & size else n + size for n in lanes]
    return _picked(a, b, first), _picked(a, b, second)


def _picked(a: Vec, b: Vec, picks: Sequence[int]) -> Vec:
    """A two-input shuffle."""
    order = ", ".join(f"i32 {p}" for p in picks)
    places = f"{a.code.vector('i32')} <{order}>"
    return a.made(f"shufflevector {a.type} {a.text}, {b.type} {b.text}, {places}")


def for_each_vector(code: Code, extent: Bound, body: Callable[[str, Vec | None], None]) -> None:
    """The body for every vector of an extent; the last may be partial, and where masks cost nothing
    all are masked."""
    lanes = code.lanes
    if isinstance(extent, int):
        whole: Bound = extent // lanes * lanes
    else:
        whole = 0 if code.isa.has_masks else code.integer("and", extent, -lanes)
    if whole != 0:
        with code.count(0, whole, lanes) as at:
            body(at, None)
    if whole != extent:
        with code.count(whole, extent, lanes) as at:
            body(at, below(code, code.i64("sub", extent, at)))
