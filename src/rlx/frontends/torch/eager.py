"""The graph that a model was imported from, run by torch: for calls on tensors that share memory
with one that the graph writes, where what is read depends on the order of reads and writes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rlx.frontends.torch.dtypes import tensor_of
from rlx.frontends.torch.namespaces import pytree, torch


@dataclass(frozen=True, slots=True)
class Place:
    """An operand that is an argument of the call."""

    number: int


@dataclass(frozen=True, slots=True)
class EagerGraph:
    """A graph of ATen ops, and what its placeholders are: arguments of a call by place, or tensors
    of the model."""

    module: Any
    operands: tuple[Any, ...]

    def __call__(self, flat: Sequence[Any]) -> list[Any]:
        """Its flat results, of the values that torch has for these arguments."""
        given = [_tensor(flat[o.number]) if isinstance(o, Place) else o for o in self.operands]
        with torch.no_grad():
            made = torch.fx.Interpreter(self.module).run(*given)
        return [_detached(r) for r in pytree.tree_leaves(made)]


def _tensor(value: Any) -> Any:
    """An array as a tensor on its memory."""
    return tensor_of(value) if hasattr(value, "__array_interface__") else value


def _detached(result: Any) -> Any:
    return result.detach() if isinstance(result, torch.Tensor) else result
