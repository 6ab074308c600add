"""Sizes that torch leaves open: a call is answered as the module answers it, by a program for its
sizes where the one for named dims is not for them, or refused where torch's guards do not hold."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import rlx
from rlx.core.errors import Error
from rlx.frontends.torch.model import from_exported

AUTO = torch.export.Dim.AUTO
TRACED = "torch traced the program for calls with"
Condition = Callable[[int, int], bool]
CONDITIONS: dict[str, Condition] = {
    "order": lambda n, m: n > m,
    "order of formulas": lambda n, m: 2 * n - 3 >= m,
    "a multiple": lambda n, m: n % 2 == 0,
    "no multiple": lambda n, m: (n + m) % 3 != 0,
    "a quotient": lambda n, m: n // 2 < m,
    "both": lambda n, m: n > 3 and m < 9,
    "one of two": lambda n, m: n > 9 or m > 9,
    "not": lambda n, m: not (n > 2 * m),
    "an equation": lambda n, m: n == m + 2,
    "a product": lambda n, m: n * m < 40,
    "the larger": lambda n, m: max(n, m) == n,
}  # fmt: skip


class Branching(nn.Module):
    """Torch keeps one of two branches."""

    def __init__(self, condition: Condition) -> None:
        super().__init__()
        self.condition = condition

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        if self.condition(x.shape[0], y.shape[0]):
            return x * 3 + y.sum()
        return x - y.sum()


def open_first(module: nn.Module, *args: Tensor) -> Any:
    return torch.export.export(module, args, dynamic_shapes=tuple({0: AUTO} for _ in args))


@pytest.mark.parametrize("target", ["reference", "cpu"])
@pytest.mark.parametrize("name", CONDITIONS)
def test_the_other_branch_is_never_taken(name: str, target: str) -> None:
    module = Branching(CONDITIONS[name])
    exported = open_first(module, torch.ones(6), torch.ones(4))
    program = rlx.compile(from_exported(exported), target)
    answers = 0
    for n, m in itertools.product((2, 3, 6, 7, 10), (2, 4, 5, 8, 12)):
        x, y = torch.arange(n) + 0.5, torch.arange(m) + 1.0
        if not _is_accepted(exported, x, y):
            with pytest.raises(Error, match=f"{TRACED}|range|no sizes"):
                program(x, y)
        else:
            torch.testing.assert_close(program(x, y), module(x, y))
            answers += 1
    assert answers


@pytest.mark.parametrize("target", ["reference", "cpu"])
@pytest.mark.parametrize("name", CONDITIONS)
def test_a_module_is_traced_again_for_its_other_branch(name: str, target: str) -> None:
    module = Branching(CONDITIONS[name])
    shapes = ({0: AUTO}, {0: AUTO})
    program = rlx.compile(
        module, (torch.ones(6), torch.ones(4)), target=target, dynamic_shapes=shapes
    )
    for n, m in ((6, 4), (7, 12), (2, 2), (10, 5), (1, 1)):
        x, y = torch.arange(n) + 0.5, torch.arange(m) + 1.0
        torch.testing.assert_close(program(x, y), module(x, y))
        np.testing.assert_allclose(program(x.numpy(), y.numpy()), module(x, y))


def test_ranges_that_the_user_states_hold() -> None:
    module, dim = Branching(CONDITIONS["both"]), torch.export.Dim("rows", min=4, max=8)
    shapes = ({0: dim}, {0: None})
    program = rlx.compile(
        module, (torch.ones(6), torch.ones(4)), target="reference", dynamic_shapes=shapes
    )
    with pytest.raises(Error, match=r"range 4\.\.8"):
        program(torch.ones(9), torch.ones(4))


def _is_accepted(exported: Any, *args: Tensor) -> bool:
    try:
        exported.module()(*args)
    except (AssertionError, RuntimeError):
        return False
    return True


def test_files_and_saved_programs_have_guards(tmp_path: Path) -> None:
    torch.export.save(
        open_first(Branching(CONDITIONS["order"]), torch.ones(6), torch.ones(4)), tmp_path / "x.pt2"
    )
    program = rlx.compile(rlx.load(tmp_path / "x.pt2"), "cpu")
    program.save(tmp_path / "x.rlx")
    saved = rlx.load(tmp_path / "x.rlx")
    for call in (program, saved):
        call(np.ones(5, np.float32), np.ones(4, np.float32))
        with pytest.raises(Error, match=TRACED):
            call(np.ones(4, np.float32), np.ones(5, np.float32))


def test_guards_that_cannot_be_read_leave_the_traced_sizes(tmp_path: Path) -> None:
    exported = open_first(Branching(CONDITIONS["order"]), torch.ones(6), torch.ones(4))
    exported._guards_code = ["unknown(L['x']) > 3"]
    program = rlx.compile(from_exported(exported), "reference")
    assert program(torch.ones(6), torch.ones(4)).shape == (6,)
    with pytest.raises(Error, match="which rlx cannot check"):
        program(torch.ones(7), torch.ones(4))


class Split(nn.Module):
    """Views that no polynomial of sizes describes."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        self.calls += 1
        n = x.shape[0]
        made = self.linear(x.unflatten(0, (n // 4, -1)))
        return made, x[n - 2 :].sum(0) * self.calls, x.view(-1)[: n // 4]


SIZES = (8, 12, 16, 10, 4, 8)


@pytest.mark.parametrize("target", ["reference", "cpu"])
def test_sizes_without_a_formula(target: str) -> None:
    """Torch traces 4 anew: it has taken n // 4 to be above 1."""
    module = Split()
    program = rlx.compile(module, (torch.ones(8, 3),), target=target, dynamic_shapes=({0: AUTO},))
    expected = Split()
    expected.load_state_dict(module.state_dict())
    with torch.no_grad():
        for n in SIZES:
            x = torch.randn(n, 3)
            torch.testing.assert_close(program(x), expected(x))
    assert module.calls == len(SIZES)
    assert len(program.programs) == 3, "one for multiples of 4, one for 10, and one for 4"


def test_weights_reach_every_program() -> None:
    module = Split()
    program = rlx.compile(module, (torch.ones(8, 3),), target="cpu", dynamic_shapes=({0: AUTO},))
    x = torch.ones(12, 3)
    with torch.no_grad():
        program(x)
        module.linear.weight.mul_(2.0)
        expected = module.linear(x.unflatten(0, (3, -1)))
        torch.testing.assert_close(program(x)[0], expected)
        program.set_params({"linear.weight": np.zeros((2, 3), np.float32)})
        bias = module.linear.bias.expand(3, 4, 2)
        torch.testing.assert_close(program(x)[0], bias)


def test_many_sizes_are_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "rlx")

    class Parts(nn.Module):
        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return x.unflatten(0, (y.shape[0] // 4, -1)) * 2

    program = rlx.compile(
        Parts(), (torch.ones(24), torch.ones(8)), target="reference",
        dynamic_shapes=({0: AUTO}, {0: AUTO}),
    )  # fmt: skip
    for m in range(8, 20):
        torch.testing.assert_close(
            program(torch.ones(24), torch.ones(m)), torch.full((m // 4, 24 // (m // 4)), 2.0)
        )
    assert "This is compile 9: pad inputs to a few sizes" in caplog.text
    assert "compile_per_shapes" in str([d.what for d in program.before])


class Empty(nn.Module):
    """Torch takes open sizes to be above 1, where the slice is empty."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, x])[-2:1] * 2


def test_size_one_is_not_what_torch_says_of_larger_ones() -> None:
    program = rlx.compile(from_exported(open_first(Empty(), torch.ones(5))), "reference")
    for n in (1, 2, 5):
        x = torch.arange(n) + 1.0
        torch.testing.assert_close(program(x), Empty()(x))


def test_the_exported_program_keeps_its_sizes() -> None:
    """Torch decomposes ops on the fake tensors of their program, and may fix sizes of these."""

    class Sliced(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x[-2 : x.shape[0] : 2][x.shape[0] : x.shape[0] : 3]

    exported = open_first(Sliced(), torch.ones(8))
    program = rlx.compile(from_exported(exported), "reference")
    (place,) = (n for n in exported.graph.nodes if n.op == "placeholder")
    assert not place.meta["val"].shape[0].node.expr.is_Integer
    assert program(torch.ones(10)).shape == (0,)


@pytest.mark.parametrize("target", ["reference", "cpu"])
def test_dynamo_with_sizes_without_a_formula(target: str) -> None:
    def split(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        n = x.shape[0]
        return x.unflatten(0, (n // 4, -1)) * 2, y[: torch.sym_min(n, 3)].repeat(2, 1)

    options = {"target": target, "strict": True}
    compiled = torch.compile(split, backend="rlx", dynamic=True, options=options)
    for n, m in ((8, 5), (12, 7), (5, 4), (16, 9), (4, 4)):
        x, y = torch.randn(n, 3), torch.randn(m, 2)
        with torch.no_grad():
            torch.testing.assert_close(compiled(x, y), split(x, y))
