"""Families of ops, by which the page of a report colours kernels."""

from __future__ import annotations

import pytest

from rlx.explain.op_families import (
    FAMILIES,
    INT8_PRODUCTS,
    LISTED,
    family_of,
    family_of_all,
)
from rlx.ops.op import Kind, table


def test_listed_ops_are_in_the_table() -> None:
    assert LISTED.keys() | INT8_PRODUCTS <= table().keys()
    assert {table()[op].kind for op in LISTED} <= {Kind.SPECIAL, Kind.CONTROL}


@pytest.mark.parametrize(
    ("ops", "family"),
    [
        (("cached_attention",), "attention"),
        (("append",), "data movement"),
        (("mul", "add", "resize"), "convolutions, pooling, resampling"),
        (("rfft", "mul"), "FFT, sort, recurrence"),
        (("transpose", "gelu"), "elementwise kernels"),
        (("svd",), "others"),
        (("no such op",), "others"),
    ],
)
def test_kernels_are_of_the_family_of_their_main_op(ops: tuple[str, ...], family: str) -> None:
    assert FAMILIES[family_of_all(ops)] == family


def test_every_family_has_an_op() -> None:
    assert {family_of(op) for op in table()} == set(range(len(FAMILIES)))
