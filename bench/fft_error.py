"""How exact transforms are: `python -m bench.fft_error` compares the L2 error of f32 transforms,
against f64, with that of SciPy's f32 transforms, and fails where ours is over 1.2 times as large.

Lengths of small factors have code of their own, compiled many at a time; all others share one
program, which takes the length in a call and computes as the programs of single lengths do.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.fft

import rlx
from bench.workload import Array
from rlx.backends.cpu.isa import isa
from rlx.backends.cpu.library.fft.twiddles import radices_of
from rlx.core.dim import Dim, DimLike
from rlx.core.dtype import DType
from rlx.core.shape import Shape
from rlx.ir.mir import Graph, Node

WORSE = 1.2
"""The error may be this many times SciPy's."""
UP_TO = 5000
PRIMES = (10007, 20011, 30011, 50021, 65537, 99991, 131071, 262139, 524287, 1000003)
PRODUCTS = (
    2**16, 2**20, 3**10, 5**7, 7**6, 11**5, 2 * 3 * 5 * 7 * 11 * 13 * 17, 2 * 65537, 1000 * 1001,
    97 * 101 * 103,
)  # fmt: skip
OPS = ("fft", "ifft", "rfft", "irfft")
BATCH = 128
"""Transforms that are compiled together."""


@dataclass(frozen=True, slots=True)
class Error:
    """The errors of one transform."""

    op: str
    n: int
    ours: float
    theirs: float

    @property
    def ratio(self) -> float:
        """Ours to theirs; where neither has any it is 0."""
        return 0.0 if self.ours == 0.0 else self.ours / max(self.theirs, 1e-300)

    def __str__(self) -> str:
        return (
            f"{self.op} of {self.n}: {self.ours:.2e}, SciPy's {self.theirs:.2e}: {self.ratio:.3f}×"
        )


def rows_of(n: int) -> int:
    """As many as give some thousand numbers, so that chance does not decide whose error is less."""
    return (3 if n < 8192 else 1) + 4096 // n


def points(op: str, n: int) -> Array:
    rng = np.random.default_rng(n)
    dims = (rows_of(n), n // 2 + 1 if op == "irfft" else n)
    re, im = rng.normal(size=(2, *dims))
    return re.astype(np.float32) if op == "rfft" else (re + 1j * im).astype(np.complex64)


def peer(op: str, x: Array, n: int) -> Array:
    return getattr(scipy.fft, op)(x, n)


def compared(op: str, n: int, x: Array, got: Array) -> Error:
    wide = np.complex128 if np.iscomplexobj(x) else np.float64
    want = peer(op, x.astype(wide), n)
    size = float(np.linalg.norm(want))
    ours, theirs = (float(np.linalg.norm(v - want)) / size for v in (got, peer(op, x, n)))
    return Error(op, n, ours, theirs)


# -- programs -------------------------------------------------------------------------------------

Case = tuple[str, int]
"""An op and a length."""


def applied(g: Graph, name: str, op: str, dims: tuple[DimLike, DimLike], n: int | None) -> Node:
    x = g.input(name, Shape(dims, DType.F32 if op == "rfft" else DType.C64))
    attrs: dict[str, Any] = {"inverse": False} if op == "fft" else {}
    attrs |= {"n": n} if op in ("rfft", "irfft") else {}
    return g.node(op, [x], attrs | {"norm": "backward"})


def errors_of_known(cases: Sequence[Case], target: str) -> Iterator[Error]:
    """Each length by code of its own, all in one program."""
    g, given = Graph("known"), [points(*case) for case in cases]
    g.set_outputs([
        applied(g, f"x{i}", op, x.shape, n)
        for i, ((op, n), x) in enumerate(zip(cases, given))
    ])  # fmt: skip
    exe: Any = rlx.compile(g, target=target, cache=False)
    made = exe(*given)
    for (op, n), x, got in zip(cases, given, [made] if len(cases) == 1 else made):
        yield compared(op, n, x, np.asarray(got))


def errors_of_any(op: str, lengths: Sequence[int], target: str) -> Iterator[Error]:
    """All lengths by one program, which is told the length in a call."""
    g = Graph("any")
    g.set_outputs([applied(g, "x", op, (Dim("rows", 1), Dim("n", 1)), None)])
    exe: Any = rlx.compile(g, target=target, cache=False)
    for n in lengths:
        x = points(op, n)
        yield compared(op, n, x, np.asarray(exe(x)))


def errors(lengths: Sequence[int], target: str = "cpu") -> Iterator[Error]:
    """Of every op at every length."""
    _, _, variant = target.partition(":")
    on = isa(variant or "host")
    smooth = [n for n in lengths if radices_of(n, on) is not None]
    others = [n for n in lengths if radices_of(n, on) is None]
    for op in OPS:
        shared = [n for n in others if takes_length(op, n)]
        yield from errors_of_any(op, shared, target) if shared else ()
    known = [(op, n) for n in smooth for op in OPS]
    known += [(op, n) for n in others for op in OPS if not takes_length(op, n)]
    for i in range(0, len(known), BATCH):
        yield from errors_of_known(known[i : i + BATCH], target)


def takes_length(op: str, n: int) -> bool:
    """Can the length be that of the operand? What as many bins mean is even."""
    return op != "irfft" or n % 2 == 0


# -- the command ----------------------------------------------------------------------------------


def shown(found: Iterable[Error]) -> list[Error]:
    """All errors, the worst of each op printed as soon as it is known."""
    made, worst, start = list[Error](), dict[str, Error](), time.perf_counter()
    for error in found:
        made.append(error)
        if error.op not in worst or error.ratio > worst[error.op].ratio:
            worst[error.op] = error
            print(f"{time.perf_counter() - start:6.0f} s  {error}", flush=True)
    return made


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser("python -m bench.fft_error", description=__doc__)
    parser.add_argument("--up-to", type=int, default=UP_TO, help="all lengths up to this")
    parser.add_argument("--every", type=int, default=1, help="only every so many of them")
    parser.add_argument("--target", default="cpu", help="cpu, cpu:avx2, …")
    asked = parser.parse_args(argv)
    lengths = [*range(1, asked.up_to + 1, asked.every), *PRIMES, *PRODUCTS]
    made = shown(errors(lengths, asked.target))
    for op in OPS:
        print("worst:", max((e for e in made if e.op == op), key=lambda e: e.ratio))
    wrong = [e for e in made if not e.ratio <= WORSE]
    print(f"{len(made)} transforms of {len(lengths)} lengths, {len(wrong)} over {WORSE}×")
    print(*wrong, sep="\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
