"""Ops of other libraries that change their operands: in parts, and run by torch on the host."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import rlx
import rlx.torch
from rlx.frontends.torch import handlers
from rlx.frontends.torch.dynamo import backend


@torch.library.custom_op("rlxtest::add_to", mutates_args={"x"})
def add_to(x: Tensor, k: float) -> None:
    x.add_(k)


@add_to.register_fake
def _(x: Tensor, k: float) -> None:
    del x, k


@torch.library.custom_op("rlxtest::change_both", mutates_args={"x", "y"})
def change_both(x: Tensor, y: Tensor) -> Tensor:
    x.add_(1)
    y.mul_(2)
    return x + y


@change_both.register_fake
def _(x: Tensor, y: Tensor) -> Tensor:
    del y
    return torch.empty_like(x)


LIBRARY = torch.library.Library("rlxtest", "FRAGMENT")
LIBRARY.define("increase_(Tensor(a!) x) -> Tensor(a!)")
LIBRARY.impl("increase_", lambda x: x.add_(1), "CPU")
LIBRARY.impl("increase_", lambda x: x, "Meta")


def intermediate(x: Tensor) -> Tensor:
    y = x * 2
    add_to(y, 3.0)
    return y + 1


def argument(x: Tensor) -> Tensor:
    add_to(x, 3.0)
    return x * 2


def view(x: Tensor) -> Tensor:
    y = x * 2
    add_to(y[1:], 3.0)
    return y


def several(x: Tensor) -> Any:
    y, z = x * 2, x + 1
    return change_both(y[0], z[1]), y, z


def returned(x: Tensor) -> Any:
    y = x * 2
    z = torch.ops.rlxtest.increase_(y)
    return y + 1, z * 2


NAMES = ("rlxtest::add_to", "rlxtest::change_both", "rlxtest::increase_")
FUNCTIONS = (intermediate, argument, view, several, returned)
CASES = pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    with torch.no_grad():
        yield


@pytest.fixture
def on_host() -> Iterator[None]:
    for name in NAMES:
        rlx.torch.host_op(name)
    yield
    handlers._of_users.clear()


def check(function: Any, program: Any) -> None:
    """The same results, and the same values in the argument."""
    own, eager = torch.arange(12.0).reshape(4, 3), torch.arange(12.0).reshape(4, 3)
    torch.testing.assert_close(program(own), function(eager))
    torch.testing.assert_close(own, eager)


@CASES
def test_torch_runs_them_between_parts(function: Any) -> None:
    check(function, torch.compile(function, backend=backend.rlx))


@CASES
@pytest.mark.usefixtures("on_host")
def test_torch_runs_them_inside_of_programs(function: Any) -> None:
    check(function, torch.compile(function, backend=backend.rlx, options={"strict": True}))
    check(function, rlx.torch.compile(function, (torch.ones(4, 3),)))


def test_the_refusal_names_the_op_and_the_next_step() -> None:
    with pytest.raises(Exception, match=r"rlxtest::add_to at test_custom_ops\.py") as caught:
        torch.compile(argument, backend=backend.rlx, options={"strict": True})(torch.ones(3))
    assert "rlx.torch.host_op('rlxtest::add_to')" in str(caught.value)
