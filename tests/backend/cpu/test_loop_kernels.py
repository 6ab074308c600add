"""Loop kernels as native code: every op that forms one gives what its reference gives."""

from __future__ import annotations

import pytest

from rlx.ops.op import Op

pytest.importorskip("llvmlite")

from rlx.backends.cpu.isa import AVX2, SSE2, Isa, host
from tests.backend.cpu.kernels import LOOPS, Batch, assert_close, works_of
from tests.effort import sample, tries

CASES = tries(3, 8)


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
