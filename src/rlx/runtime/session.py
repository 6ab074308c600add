"""Compiling for a target, and a session that does not compile the same thing twice."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from rlx._version import __version__
from rlx.backends.base import find_backend
from rlx.cost.target import Target
from rlx.errors import Error
from rlx.ir.hir import HirModule
from rlx.ir.mir import Graph, MirModule
from rlx.module import GraphModule
from rlx.passes.options import FusionOptions
from rlx.pipeline import CompilePipeline, CompileResult
from rlx.runtime.executable import Executable


def compile(
    model: Any,
    target: str = "reference",
    *,
    like: str = "cpu",
    options: FusionOptions | None = None,
    params: Mapping[str, Any] | None = None,
) -> Executable:
    """Compile a model and load it for `target`.

    `model` is a HirModule, MirModule, Graph, GraphModule or function decorated with `rlx.jit`'s
    `trace`. Target "reference" runs on NumPy the plan that the target named by `like` would run.
    """
    return Session(target, like=like).compile(model, options=options, params=params)


class Session:
    """A target, and what has been compiled for it: equal requests share one compile."""

    def __init__(self, target: str = "reference", *, like: str = "cpu") -> None:
        self.backend = find_backend(target)
        self.target = Target.of(like if target == "reference" else target)
        self._compiled: dict[str, CompileResult] = {}

    def compile(
        self,
        model: Any,
        *,
        options: FusionOptions | None = None,
        params: Mapping[str, Any] | None = None,
    ) -> Executable:
        """An executable of `model`; passes and plan are reused where the request was met before."""
        key = request_key(model, self.target, options)
        result = self._compiled.get(key)
        if result is None:
            pipeline = CompilePipeline(self.target, options=options)
            result = self._compiled[key] = pipeline.compile(model)
        return Executable(result, self.backend.load(result.lir), params)

    @property
    def cached(self) -> int:
        """How many compiles are kept."""
        return len(self._compiled)


def request_key(model: Any, target: Target, options: FusionOptions | None) -> str:
    """A hash of all that a compile depends on: input graph, options, target and version."""
    parts = [_digest(model), (options or FusionOptions()).text(), target.digest(), __version__]
    return hashlib.blake2b("\n".join(parts).encode(), digest_size=16).hexdigest()


def _digest(model: Any) -> str:
    if isinstance(model, GraphModule):
        return f"{model.stage.name} {_digest(model.value)}"
    if isinstance(model, HirModule):
        return f"{model.policy.name} {model.graph.name} {model.graph.digest()}"
    if isinstance(model, MirModule):
        return f"{model.name} {model.graph.digest()}"
    if isinstance(model, Graph):
        return f"{model.name} {model.digest()}"
    if hasattr(model, "fingerprint"):
        return model.fingerprint
    raise Error(
        f"rlx.compile takes a HirModule, MirModule, Graph or GraphModule, "
        f"not {type(model).__name__}. For a Python function use rlx.trace or rlx.jit."
    )
