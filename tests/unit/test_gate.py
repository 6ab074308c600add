"""The gate: the documented worked cases, to 0.01 ns, and that wrong prices are refused."""

import math
from dataclasses import fields

import pytest

from rlx.core.errors import Error
from rlx.cost.gate import (
    FusionBenefit,
    GraphIoProfile,
    IoFusionGate,
    fusion_benefit,
    is_dominating,
)
from rlx.cost.target import FusionTarget

SPECTRUM = GraphIoProfile(3, 0, 33_554_432, 184_549_376)
PEAKS = GraphIoProfile(4, 1, 1_048_576, 219_152_384)
METAL = IoFusionGate(500, 5_000, 200, 200, True, 2_000_000, 1_000)
WGPU = IoFusionGate(3_000, 30_000, 100, 40, False, 25_000_000, 10_000)

SCORES = {
    FusionTarget.METAL: (30_327_340.96, True),
    FusionTarget.MLX: (30_327_340.96, True),
    FusionTarget.CUDA: (-14_415_136.64, False),
    FusionTarget.ROCM: (-14_415_136.64, False),
    FusionTarget.WGPU: (-24_566_383.68, False),
    FusionTarget.TPU: (-24_566_383.68, False),
    FusionTarget.CPU: (31_813_745.84, True),
}


def test_a_profile_has_exactly_the_four_documented_fields() -> None:
    names = [f.name for f in fields(GraphIoProfile)]
    assert names == ["kernel_launches", "sync_points", "host_output_bytes", "device_traffic_bytes"]


def test_case_1_saves_a_launch_and_readback() -> None:
    before, after = GraphIoProfile(2, 1, 8192, 16384), GraphIoProfile(1, 1, 512, 16384)
    assert fusion_benefit(before, after) == FusionBenefit(1, 0, 7680, 0)


@pytest.mark.parametrize(("gate", "score", "verdict"), [
    (METAL, 30_327_340.96, True),
    (WGPU, -24_566_383.68, False),
])  # fmt: skip
def test_cases_2_and_3(gate: IoFusionGate, score: float, verdict: bool) -> None:
    benefit = fusion_benefit(SPECTRUM, PEAKS)
    assert benefit == FusionBenefit(-1, -1, 32_505_856, -34_603_008)
    assert gate.score_ns(benefit) == pytest.approx(score, abs=0.01, rel=0)
    assert gate.should_fuse(SPECTRUM, PEAKS) is verdict


@pytest.mark.parametrize("target", FusionTarget)
def test_every_targets_prices_give_the_documented_score(target: FusionTarget) -> None:
    score, verdict = SCORES[target]
    for name in (target, target.value):
        gate = IoFusionGate.for_target(name)
        assert gate.score_ns(fusion_benefit(SPECTRUM, PEAKS)) == pytest.approx(
            score, abs=0.01, rel=0
        )
        assert gate.should_fuse(SPECTRUM, PEAKS) is verdict


def test_a_benefit_has_a_score_of_its_own_without_the_gates_penalty() -> None:
    benefit = fusion_benefit(SPECTRUM, PEAKS)
    assert benefit.score_ns(500, 5_000, 200, 200, True) == pytest.approx(32_327_340.96, abs=0.01)
    assert benefit.score_ns(3_000, 30_000, 100, 40, False) == pytest.approx(433_616.32, abs=0.01)
    assert benefit.should_fuse(3_000, 30_000, 100, 40, False, 433_616)
    assert not benefit.should_fuse(3_000, 30_000, 100, 40, False, 433_617)
    with pytest.raises(Error, match="memory_gb_s"):
        benefit.score_ns(0, 0, 0, 1, False)


def test_what_is_read_back_depends_on_whether_memory_is_shared() -> None:
    profile = GraphIoProfile(1, 0, 100, 402)
    assert profile.host_readback_bytes(True) == 100
    assert profile.host_readback_bytes(unified=False) == 200


def test_a_realistic_copy_out_of_unified_memory_keeps_case_2() -> None:
    prices = (500, 5_000, 200, 200, True, 2_000_000, 1_000)
    assert IoFusionGate(*prices, unified_readback_gb_s=14.9).should_fuse(SPECTRUM, PEAKS)
    assert not IoFusionGate(*prices, unified_readback_gb_s=14.93).should_fuse(SPECTRUM, PEAKS)


def test_a_removed_sync_is_credited_its_round_trip_only() -> None:
    assert METAL.score_ns(FusionBenefit(0, 2, 0, 0)) == 10_000
    assert METAL.score_ns(FusionBenefit(0, -2, 0, 0)) == -10_000 - 4_000_000


def test_the_threshold_is_met_by_equality() -> None:
    before = GraphIoProfile(2, 0, 0, 0)
    assert METAL.score_ns(FusionBenefit(2, 0, 0, 0)) == METAL.min_gain_ns
    assert METAL.should_fuse(before, GraphIoProfile())
    assert not METAL.should_fuse(before, GraphIoProfile(1, 0, 0, 0))


def test_slow_links_are_priced_as_given_and_not_clamped() -> None:
    gate = IoFusionGate(0, 0, 0.5, 0.25, False, 0, 0)
    assert gate.score_ns(FusionBenefit(0, 0, 1, 1)) == 4 + 2


@pytest.mark.parametrize("field", ["memory_gb_s", "readback_gb_s", "unified_readback_gb_s"])
@pytest.mark.parametrize("value", [0, -1, math.nan, math.inf, "fast", True])
def test_a_wrong_bandwidth_is_an_error_that_names_it(field: str, value: object) -> None:
    with pytest.raises(Error, match=field):
        _gate_with(field, value)


@pytest.mark.parametrize(
    "field", ["dispatch_ns", "roundtrip_ns", "host_thunk_penalty_ns", "min_gain_ns"]
)
@pytest.mark.parametrize("value", [-1, math.nan, math.inf, None, False])
def test_a_wrong_price_is_an_error_that_names_it(field: str, value: object) -> None:
    assert getattr(_gate_with(field, 0), field) == 0
    with pytest.raises(Error, match=field):
        _gate_with(field, value)


def test_unified_memory_is_a_boolean() -> None:
    with pytest.raises(Error, match="unified_memory"):
        _gate_with("unified_memory", 1)


@pytest.mark.parametrize(("benefit", "flops_saved", "expected"), [
    (FusionBenefit(1, 0, 0, 0), 0, True),
    (FusionBenefit(0, 0, 0, 1), 0, True),
    (FusionBenefit(0, 0, 0, 0), 1, True),
    (FusionBenefit(), 0, False),
    (FusionBenefit(5, 0, 0, -1), 0, False),
    (FusionBenefit(5, -1, 0, 9), 0, False),
    (FusionBenefit(5, 5, 5, 5), -1, False),
])  # fmt: skip
def test_dominating(benefit: FusionBenefit, flops_saved: int, expected: bool) -> None:
    assert is_dominating(benefit, flops_saved) is expected


def _gate_with(field: str, value: object) -> IoFusionGate:
    prices = {
        "dispatch_ns": 1, "roundtrip_ns": 1, "memory_gb_s": 1, "readback_gb_s": 1,
        "unified_memory": False, "host_thunk_penalty_ns": 1, "min_gain_ns": 1,
    }  # fmt: skip
    return IoFusionGate(**{**prices, field: value})
