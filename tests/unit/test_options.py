"""Options: values that are checked once, and hashed whole."""

import pytest

from rlx.core.errors import Error
from rlx.cost.target import FusionLimits
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
    assert Context.of("cpu").limits == FusionLimits()
