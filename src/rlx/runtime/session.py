"""Compiling for a target, and a session that does not compile the same thing twice."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from rlx._version import __version__
from rlx.backends.base import find_backend
from rlx.cost.target import FusionTarget, Target
from rlx.ir.hir import HirModule
from rlx.ir.lir import LirModule
from rlx.ir.mir import Graph, MirModule
from rlx.module import GraphModule
from rlx.passes.options import FusionOptions
from rlx.pipeline import CompilePipeline, CompileResult, cannot_compile
from rlx.runtime.executable import Executable


def compile(
    model: Any,
    target: str | FusionTarget = "reference",
    *,
    like: str | FusionTarget | Target = "cpu",
    threads: int | None = None,
    options: FusionOptions | None = None,
    params: Mapping[str, Any] | None = None,
) -> Executable:
    """Compile a model and load it for `target`.

    `model` is a HirModule, MirModule, Graph (as `rlx.trace` makes of a function), GraphModule or
    LirModule. Target "reference" runs on NumPy the plan that the target named by `like` would run.
    """
    return Session(target, like=like, threads=threads).compile(
        model, options=options, params=params
    )


class Session:
    """A target, and what has been compiled for it: equal requests share one compile."""

    def __init__(
        self,
        target: str | FusionTarget = "reference",
        *,
        like: str | FusionTarget | Target = "cpu",
        threads: int | None = None,
    ) -> None:
        text = target.value if isinstance(target, FusionTarget) else target
        name, _, variant = text.partition(":")
        self.backend = find_backend(name).configured(variant, threads)
        self.target = Target.of(like) if name == "reference" else self.backend.target()
        self._compiled: dict[str, CompileResult] = {}

    def compile(
        self,
        model: Any,
        *,
        options: FusionOptions | None = None,
        params: Mapping[str, Any] | None = None,
    ) -> Executable:
        """An executable of `model`; passes and plan are reused where the request was met before."""
        pipeline = CompilePipeline(self.target, options=options)
        key = request_key(model, self.target, pipeline.options)
        result = self._compiled.get(key)
        if result is None:
            result = self._compiled[key] = pipeline.compile(model)
        return Executable(result, self.backend.load(result.lir), params)

    @property
    def cached(self) -> int:
        """How many compiles are kept."""
        return len(self._compiled)


def request_key(model: Any, target: Target, options: FusionOptions) -> str:
    """A hash of all that a compile depends on: input graph, options, target and version."""
    parts = [_digest(model), options.text(), target.digest(), __version__]
    return hashlib.blake2b("\n".join(parts).encode(), digest_size=16).hexdigest()


def _digest(model: Any) -> str:
    match model:
        case GraphModule():
            return f"{model.stage.name} {_digest(model.value)}"
        case HirModule():
            return f"{model.policy.name} {_digest(model.graph)}"
        case MirModule():
            return _digest(model.graph)
        case Graph():
            return f"{model.name} {model.digest()}"
        case LirModule():
            return model.fingerprint
        case _:
            raise cannot_compile(model)
