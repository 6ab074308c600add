"""bench.gate: what must hold of measured verdicts is counted, not timed, here."""

from __future__ import annotations

from bench.gate import judged, median_ratio
from rlx.explain.measure_decisions import Measurement
from rlx.explain.measured import Measured


def one(verdict: bool, predicted: float, measured: float, share: float) -> Measured:
    ends = measured - 1, measured + 1
    return Measured(("a",), "fuse", ("x",), verdict, predicted, measured, *ends, share, 9)


def held(found: list[Measured]) -> list[bool]:
    return [holds for _, holds in judged([Measurement("m", {}, 1e3, tuple(found))])]


def test_all_holds_where_verdicts_are_right() -> None:
    taken = [one(True, 10.0, 12.0, 0.02)] * 45
    refused = [one(False, -10.0, -9.0, 0.02)] * 20
    assert held([*taken, *refused]) == [True] * 5


def test_each_line_fails_by_itself() -> None:
    taken, refused = [one(True, 10.0, 12.0, 0.02)] * 45, [one(False, -10.0, -9.0, 0.02)] * 20
    assert held([*taken[:39], *refused]) == [False, True, True, True, True]
    assert held([*taken, *taken[:20], *refused[:19]]) == [True, False, True, True, True]
    small = [one(True, 10.0, 12.0, 0.001)] * 60 + [one(False, -1.0, -1.0, 0.001)] * 20
    assert held([*small, *taken[:14]]) == [True, True, False, True, True]
    wrong = [one(True, 10.0, -12.0, 0.02)] * 20
    assert held([*taken, *refused, *wrong])[3] is False
    off = [one(True, 30.0, 10.0, 0.02)] * 45
    assert held([*off, *refused])[4] is False


def test_the_ratio_counts_signs() -> None:
    assert median_ratio([one(True, 10.0, 5.0, 1.0), one(False, -4.0, -8.0, 1.0)]) == 1.25
    assert median_ratio([]) == 0.0
