"""Dynamo's graph as ATen ops before dispatch: linear, attention and norms stay whole."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Sequence
from typing import Any

from rlx.core.errors import UnsupportedError
from rlx.frontends.torch.autocast import HOST, Region, with_casts
from rlx.frontends.torch.namespaces import torch

_OF_TRANSFORMS = "_functorch"


def placeholders_of(module: Any) -> list[Any]:
    return [n for n in module.graph.nodes if n.op == "placeholder"]


def fakes_of(module: Any) -> list[Any]:
    """What Dynamo states of each input: a fake tensor, or a SymInt."""
    return [n.meta.get("example_value") for n in placeholders_of(module)]


def traced(module: Any) -> Any:
    """The graph in ATen ops, with fake values in `meta["val"]`, modules and lines, and the casts of
    automatic mixed precision."""
    return with_casts(_traced(module), Region.ambient())


def _traced(module: Any) -> Any:
    from torch._dispatch.python import (  # pyright: ignore[reportMissingImports]
        enable_python_dispatcher,
    )
    from torch.fx.experimental.proxy_tensor import make_fx  # pyright: ignore[reportMissingImports]
    from torch.fx.traceback import preserve_node_meta  # pyright: ignore[reportMissingImports]

    _require_no_transforms(module)
    fakes = fakes_of(module)
    run = torch.fx.Interpreter(module).run
    make = make_fx(lambda *given: run(*given), pre_dispatch=True, _allow_non_fake_inputs=True)
    with contextlib.ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        stack.enter_context(fake_mode(fakes))
        for context in (
            preserve_node_meta(),
            enable_python_dispatcher(),
            torch.no_grad(),
            torch.autocast(HOST, enabled=False),
        ):
            stack.enter_context(context)
        try:
            return make(*fakes)
        except Exception as error:
            text = str(error).strip().partition("\n")[0]
            raise UnsupportedError(f"torch cannot trace the graph to ATen ops: {text}") from error


def _require_no_transforms(module: Any) -> None:
    """Under vmap, grad and the like, tracing before dispatch sees values of one level, which it
    would take for constants."""
    targets = (n.target for n in module.graph.nodes if n.op == "call_function")
    found = next((t for t in targets if _OF_TRANSFORMS in getattr(t, "__module__", "")), None)
    if found is not None:
        raise UnsupportedError(f"{found.__name__}: a transform of functions inside of the graph")


def fake_mode(fakes: Sequence[Any]) -> Any:
    """The mode that the fake tensors are of; one of no effect where there are none."""
    found = (f.fake_mode for f in fakes if hasattr(f, "fake_mode"))
    return next(found, None) or contextlib.nullcontext()


def shape_env(fakes: Sequence[Any]) -> Any:
    """Torch's record of symbols and their ranges; None where all sizes are known."""
    for fake in fakes:
        if isinstance(fake, torch.SymInt):
            return fake.node.shape_env
        if (mode := getattr(fake, "fake_mode", None)) is not None and mode.shape_env is not None:
            return mode.shape_env
    return None
