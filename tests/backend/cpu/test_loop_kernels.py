"""Loop kernels as native code: every op that forms one gives what its reference gives."""

from __future__ import annotations

import zlib

import pytest

import rlx
from rlx.kernel.expr import Kernel, Reduce
from rlx.kernel.lower.loop import loop_kernel
from rlx.kernel.refusal import NotLowered
from rlx.ops.draw import Draw
from rlx.ops.op import Kind, Op, table

pytest.importorskip("llvmlite")

from rlx.backends.cpu.isa import AVX2, SSE2, Isa, host
from tests.backend.cpu.kernels import Batch, Work, assert_close
from tests.effort import sample, tries

CASES = tries(3, 8)
LOOPS = [
    o
    for o in table().values()
    if not o.why_no_cases and o.kind in (Kind.ELEMENTWISE, Kind.REDUCTION, Kind.ROW, Kind.MOVEMENT)
]


def works_of(op: Op, seeds: range) -> tuple[list[Work], list[object]]:
    """Drawn applications of an op that form kernels the backend takes, and the expected results."""
    works: list[Work] = []
    wants: list[object] = []
    for seed in seeds:
        draw = Draw([zlib.crc32(op.name.encode()), seed])
        case = draw.case(op)
        arrays = draw.arrays(case)
        g = rlx.Graph(op.name)
        inputs = [g.input(f"x{i}", rlx.Shape(s.dims, s.dtype)) for i, s in enumerate(case.specs)]
        try:
            node = g.node(op, inputs, case.attrs)
            kernel = loop_kernel(node)
        except NotLowered:
            continue
        if is_refused(kernel):
            continue
        works.append(Work(kernel, arrays, {}))
        wants.append(op.run(arrays, case.attrs))
    return works, wants


def is_refused(kernel: Kernel) -> bool:
    """The one kind of loop that the backend does not take: a product along complex numbers."""
    return any(isinstance(n, Reduce) and n.fold == "prod" and n.dtype.is_complex
               for n in kernel.nodes)  # fmt: skip


def check(op: Op, isa: Isa, seeds: range) -> int:
    works, wants = works_of(op, seeds)
    if not works:
        return 0
    batch = Batch(works, isa)
    for i, want in enumerate(wants):
        code, results = batch.run(i)
        assert code == 0
        for got, expected in zip(
            results, want if isinstance(want, tuple) else (want,), strict=True
        ):
            assert_close(got, expected, str(batch.kernels[i]))
    return len(works)


@pytest.mark.parametrize("op", LOOPS, ids=lambda o: o.name)
def test_an_op_means_the_same_natively(op: Op) -> None:
    check(op, host(), range(CASES))


@pytest.mark.parametrize("op", sample(LOOPS, 2), ids=lambda o: o.name)
@pytest.mark.parametrize("isa", [AVX2, SSE2], ids=lambda i: i.name)
def test_an_op_means_the_same_on_older_machines(op: Op, isa: Isa) -> None:
    check(op, isa, range(1))
