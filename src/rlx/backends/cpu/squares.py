"""Square blocks of a matrix turned around in registers: as many vectors as one has lanes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rlx.backends.cpu.ir import Bound, Code, Vec
from rlx.backends.cpu.work import below


def turned(vectors: Sequence[Vec]) -> list[Vec]:
    """Lane j of vector i becomes lane i of vector j: blocks of 1, 2, 4 … are exchanged across the
    diagonal."""
    made, lanes = list(vectors), len(vectors)
    size = 1
    while size < lanes:
        for i in (i for i in range(lanes) if not i & size):
            made[i], made[i + size] = _exchanged(made[i], made[i + size], size)
        size *= 2
    return made


def _exchanged(a: Vec, b: Vec, size: int) -> tuple[Vec, Vec]:
    lanes = range(a.code.lanes)
    first = [n + len(lanes) - size if n & size else n for n in lanes]
    second = [n + len(lanes) if n & size else n + size for n in lanes]
    return _picked(a, b, first), _picked(a, b, second)


def _picked(a: Vec, b: Vec, picks: Sequence[int]) -> Vec:
    """Lanes of two vectors, those of the second counting on."""
    order = ", ".join(f"i32 {p}" for p in picks)
    places = f"{a.code.vector('i32')} <{order}>"
    return a.made(f"shufflevector {a.type} {a.text}, {b.type} {b.text}, {places}")


def in_vectors(code: Code, extent: Bound, body: Callable[[str, Vec | None], None]) -> None:
    """What `body` writes, for every vector of an extent; the last may not be whole, and where
    masks cost nothing all go through one."""
    lanes = code.lanes
    if isinstance(extent, int):
        whole: Bound = extent // lanes * lanes
    else:
        whole = 0 if code.isa.has_masks else code.let(f"and i64 {extent}, {-lanes}")
    if whole != 0:
        with code.count(0, whole, lanes) as at:
            body(at, None)
    if whole != extent:
        with code.count(whole, extent, lanes) as at:
            body(at, below(code, code.i64("sub", extent, at)))
