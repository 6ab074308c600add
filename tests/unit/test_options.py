"""Options: values that are checked once, and hashed whole."""

from dataclasses import fields

import numpy as np
import pytest

import rlx
from rlx import ops
from rlx.core.errors import Error
from rlx.cost.target import FusionLimits, Target
from rlx.passes.context import Context
from rlx.passes.options import DispatchPolicy, FusionOptions


@pytest.mark.parametrize(("mode", "asked"), [
    ("prefer_native", {"rope": "native", "softmax": "common", "gelu": "claim"}),
    ("force_common", {"rope": "native", "softmax": "common", "gelu": "common"}),
    ("force_native", {"rope": "native", "softmax": "common", "gelu": "native"}),
])  # fmt: skip
def test_lists_win_over_the_mode_and_native_over_common(mode: str, asked: dict[str, str]) -> None:
    policy = DispatchPolicy(
        mode,  # pyright: ignore[reportArgumentType]
        force_common=["rope", "softmax"],
        force_native=["rope"],
    )
    assert {op: policy.prefer(op)[0] for op in asked} == asked
    assert all(policy.prefer(op)[1] for op in asked)


def test_a_wrong_policy_is_an_error() -> None:
    with pytest.raises(Error, match="prefer_native, force_common, force_native"):
        DispatchPolicy("native")  # pyright: ignore[reportArgumentType]
    with pytest.raises(Error, match="force_common"):
        DispatchPolicy(force_common="rope")


def test_every_option_is_in_the_digest() -> None:
    made = [
        FusionOptions(),
        FusionOptions(skip_fusion=True),
        FusionOptions(limits=FusionLimits(4, 4)),
        FusionOptions(dispatch=DispatchPolicy("force_common")),
        FusionOptions(dispatch=DispatchPolicy(force_common={"rope"})),
        FusionOptions(dispatch=DispatchPolicy(force_native={"rope"})),
        FusionOptions(force={"fuse:1": True}),
        FusionOptions(force={"fuse:1": False}),
    ]
    assert len({options.digest() for options in made}) == len(set(made)) == len(made)
    same = FusionOptions(dispatch=DispatchPolicy(), force={"b": True, "a": False})
    assert same.digest() == FusionOptions(force={"a": False, "b": True}).digest()


def test_the_force_given_is_copied() -> None:
    force = {"fuse:1": True}
    options = FusionOptions(force=force)
    force["fuse:2"] = True
    assert dict(options.force) == {"fuse:1": True}


def test_the_callers_limits_replace_the_targets() -> None:
    assert Context.of("cuda").limits == FusionLimits(32, 16)
    assert Context.of("cuda", FusionOptions(limits=FusionLimits(4))).limits == FusionLimits(4)
    assert Context.of("cpu").limits == Target.of("cpu").limits


@pytest.mark.parametrize("field", ["force_common", "force_native"])
@pytest.mark.parametrize(("names", "why"), [
    ({"matmull"}, "Did you mean matmul"), ({"MatMul"}, "no op 'MatMul'"), ({3}, "Give a string"),
])  # fmt: skip
def test_ops_that_a_policy_names_are_of_the_table(field: str, names: set[object], why: str) -> None:
    with pytest.raises(Error, match=f"{field}.*{why}"):
        DispatchPolicy(**{field: names})  # pyright: ignore[reportArgumentType]


def dynamic() -> rlx.Graph:
    g = rlx.Graph("dynamic")
    g.set_outputs([ops.exp(g.input("x", rlx.Shape([rlx.Dim("rows", 1, 64), 4])))])
    return g


@pytest.mark.parametrize(("sizes", "why"), [
    ({"row": 8}, "no dim 'row'. It has: rows"), ({"rows": 65}, "from 1 to 64"),
    ({"rows": 0}, "from 1 to 64"),
])  # fmt: skip
def test_sizes_are_of_the_models_dims(sizes: dict[str, int], why: str) -> None:
    with pytest.raises(Error, match=f"dynamic: .*{why}"):
        rlx.CompilePipeline(options=FusionOptions(sizes=sizes)).compile(dynamic())
    rlx.CompilePipeline(options=FusionOptions(sizes={"rows": 8})).compile(dynamic())


def test_a_phase_is_a_phase() -> None:
    plan = rlx.CompilePipeline().compile(dynamic()).lir.plan
    with pytest.raises(Error, match=r"phase is 'steady'. Give a rlx.Phase"):
        plan.nodes_in_phase("steady")  # pyright: ignore[reportArgumentType]
    assert plan.nodes_in_phase(rlx.Phase.STEADY_STATE)


@pytest.mark.parametrize("value", ["3", 1.5, None, True, -1])
@pytest.mark.parametrize("field", [f.name for f in fields(rlx.GraphIoProfile)])
def test_a_profile_counts_in_whole_numbers(field: str, value: object) -> None:
    with pytest.raises(Error, match=f"GraphIoProfile: {field} is"):
        rlx.GraphIoProfile(**{field: value})  # pyright: ignore[reportArgumentType]
    assert getattr(rlx.GraphIoProfile(**{field: np.int64(3)}), field) == 3  # pyright: ignore[reportArgumentType]


def test_options_of_a_profile_are_flags() -> None:
    with pytest.raises(Error, match=r"fft_host_sync is 'no'. Give True or False"):
        rlx.GraphIoOptions("no")  # pyright: ignore[reportArgumentType]
