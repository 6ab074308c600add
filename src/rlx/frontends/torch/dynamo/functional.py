"""Functional graphs by AOTAutograd: forward passes of calls that need gradients, whose backward
passes are torch's, and graphs that rlx runs in parts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from rlx.core.errors import Error, UnsupportedError
from rlx.frontends.torch.dynamo.graph import Given
from rlx.frontends.torch.dynamo.trace import placeholders_of
from rlx.frontends.torch.namespaces import torch

CompileForward = Callable[[Any, list[Given]], Callable[..., Any]]


def by_autograd(
    module: Any, inputs: Sequence[Any], given: Sequence[Given], compile_forward: CompileForward
) -> Callable[..., Any]:
    """Dynamo's graph with what it writes, views and differentiates taken out by AOTAutograd, and
    its forward pass compiled. The partitioner of inductor decides which values a backward pass
    keeps, and which it computes again."""
    from functorch.compile import (  # pyright: ignore[reportMissingImports]
        make_boxed_func,
        min_cut_rematerialization_partition,
    )
    from torch._dynamo.backends.common import (  # pyright: ignore[reportMissingImports]
        aot_autograd,
    )
    from torch._dynamo.exc import RestartAnalysis  # pyright: ignore[reportMissingImports]
    from torch.utils._python_dispatch import (  # pyright: ignore[reportMissingImports]
        _disable_current_modes,
    )

    def forward(graph_module: Any, _: Any) -> Any:
        with _disable_current_modes():
            return make_boxed_func(compile_forward(graph_module, matched(graph_module, given)))

    def backward(graph_module: Any, _: Any) -> Any:
        return make_boxed_func(graph_module.forward)

    backend = aot_autograd(
        fw_compiler=forward, bw_compiler=backward, inference_compiler=forward,
        partition_fn=min_cut_rematerialization_partition,
    )  # fmt: skip
    try:
        return backend(module, list(inputs))
    except (Error, RestartAnalysis):
        raise
    except Exception as error:
        line = str(error).strip().partition("\n")[0]
        text = f"{type(error).__name__}: {line}"
        raise UnsupportedError(f"torch cannot make the graph functional: {text}") from error


def matched(graph_module: Any, given: Sequence[Given]) -> list[Given]:
    """What is known of the inputs of a functional graph: they are Dynamo's in their order, unless
    some share memory, or tokens of effects come first."""
    nodes = placeholders_of(graph_module)
    if len(nodes) != len(given) or not all(map(_fits, nodes, given)):
        return [Given(n.name) for n in nodes]
    return list(given)


def _fits(node: Any, given: Given) -> bool:
    fake, value = node.meta.get("val"), given.value
    if not isinstance(value, torch.Tensor):
        return not isinstance(fake, torch.Tensor)
    if not isinstance(fake, torch.Tensor):
        return False
    sizes = all(a == b for a, b in zip(fake.shape, value.shape) if isinstance(a, int))
    return fake.dtype == value.dtype and fake.dim() == value.dim() and sizes
