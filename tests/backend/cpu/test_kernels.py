"""Claims follow from registered kernels, and the documented target is the installed one."""

from __future__ import annotations

from dataclasses import fields

import pytest

from rlx.backends.cpu.backend import backend
from rlx.backends.cpu.kernels import DEDICATED, FORMS, PRIMITIVES, Registered, claims
from rlx.cost.target import FusionTarget, Target
from rlx.ops.op import lookup, table

ROWS = (*DEDICATED, *PRIMITIVES, *FORMS)
MEASURED = frozenset(("machine",))
"""Prices, and the vectors of this machine's instruction set."""


@pytest.mark.parametrize("row", ROWS, ids=lambda r: r.code)
def test_every_row_has_code_and_names_ops(row: Registered) -> None:
    assert callable(row.load())
    assert [lookup(name).name for name in row.ops] == list(row.ops)


def test_an_op_has_one_row() -> None:
    named = [op for row in ROWS for op in row.ops]
    assert len(named) == len(set(named))


def test_what_is_registered_is_claimed_and_nothing_else() -> None:
    target = backend.target()
    assert all(target.has_kernel(op) for op in claims())
    lowered = [o.name for o in table().values() if o.lower and not target.has_kernel(o.name)]
    assert lowered, "some ops have no kernel here"
    assert not claims() & set(lowered)


def test_primitives_are_those_without_a_lowering() -> None:
    assert all(lookup(op).lower is None for row in PRIMITIVES for op in row.ops)
    assert all(lookup(op).lower is not None for op in claims())


@pytest.mark.parametrize("name", [f.name for f in fields(Target) if f.name not in MEASURED])
def test_the_documented_target_is_the_installed_one(name: str) -> None:
    documented = Target.of(FusionTarget.CPU)
    assert getattr(documented, name) == getattr(backend.target(), name)
