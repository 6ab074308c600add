"""Every op that the CPU backend claims computes what the reference does.

The whole matrix, of all cases on all instruction sets, is `python -m tests.backend.cpu.matrix`.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from rlx.backends.cpu.isa import ISAS, NEON, why_not
from rlx.ops.op import Op
from tests.backend.cpu.laws import CLAIMED, DRAWN, REFUSED, batch, chunks, code_for, wrong
from tests.effort import sample, tries

CASES = tries(3, 6)
LARGE_CASE = 8
"""One whose sizes fill vectors."""


def names(ops: Sequence[Op]) -> str:
    return f"{ops[0].name}-{ops[-1].name}"


@pytest.mark.parametrize("op", CLAIMED, ids=lambda o: o.name)
def test_an_op_means_the_same(op: Op) -> None:
    assert wrong(batch([op], 0, CASES), "cpu") == []


@pytest.mark.parametrize("isa", ["avx2", "sse2"])
@pytest.mark.parametrize("ops", chunks(sample(CLAIMED, 3), 8), ids=names)
def test_ops_mean_the_same_on_other_instruction_sets(isa: str, ops: Sequence[Op]) -> None:
    if why := why_not(ISAS[isa]):
        pytest.skip(why)
    assert wrong(batch(ops, LARGE_CASE, 1), f"cpu:{isa}") == []


@pytest.mark.parametrize("ops", chunks(CLAIMED[::5], 8), ids=names)
def test_code_for_aarch64_is_made(ops: Sequence[Op]) -> None:
    code = code_for(batch(ops, LARGE_CASE, 1), NEON)
    assert code.arch == "aarch64"
    assert "run" in code.exports


def test_no_op_is_refused() -> None:
    assert {o.name for o in DRAWN} & REFUSED == set()
