"""Square blocks of a matrix turned around in registers: as many vectors as one has lanes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rlx.backends.cpu.ir import Bound, Code, Vec
from rlx.backends.cpu.lanes import advanced, load, store
from rlx.backends.cpu.work import below
from rlx.dtype import DType


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


def summed(vectors: Sequence[Vec]) -> Vec:
    """The sum of the lanes of vector i in lane i: blocks of 1, 2, 4 … are exchanged and added, so
    that half of the vectors are left each time."""
    made, size = list(vectors), 1
    while len(made) > 1:
        pairs = zip(made[::2], made[1::2])
        made = [a + b for a, b in (_exchanged(x, y, size) for x, y in pairs)]
        size *= 2
    return made[0]


def turn(code: Code, dtype: DType, given: tuple[str, Bound], to: tuple[str, Bound]) -> None:
    """Turn a square in memory: to[j, i] = given[i, j], each an address and the stride of its lines,
    whose elements are side by side. A function of its own, as LLVM takes long over shuffles."""
    name = f"turn.{dtype.value}.{code.lanes}"
    if name not in code.shared:
        code.shared[name] = ""
        args = "ptr %given, i64 %across, ptr %to, i64 %along"
        body = _turning(Code(code.lanes, code.isa, code.shared), dtype)
        code.shared[name] = body.function(f"define internal void @{name}({args}) noinline")
    (source, across), (target, along) = given, to
    code.do(f"call void @{name}(ptr {source}, i64 {across}, ptr {target}, i64 {along})")


def _turning(code: Code, dtype: DType) -> Code:
    lines = [code.i64("mul", "%across", n) for n in range(code.lanes)]
    found = [load(code, dtype, advanced(code, "%given", line, dtype)) for line in lines]
    for n, vector in enumerate(turned(found)):
        store(code, vector, dtype, advanced(code, "%to", code.i64("mul", "%along", n), dtype))
    code.do("ret void")
    return code


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
