"""Explain: every decision of a compile, why it was taken, and what it saves.

    report = rlx.explain(model, "cpu")     # or exe.explain()
    print(report)                          # the table
    report.to_json()                       # the documented form
    print(rlx.explain.why(report, "/encoder/layer.0/MatMul"))
    print(rlx.explain.diff(report, rlx.explain(model, "cuda")))

`rlx.explain` is this package, and can be called.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any, cast

from rlx.core.public_calls import public

if TYPE_CHECKING:
    from rlx.cost.target import FusionTarget, Target
    from rlx.explain.compare import Difference
    from rlx.explain.node_history import Why
    from rlx.explain.report import Report
    from rlx.ir.mir import Graph
    from rlx.passes.options import FusionOptions


def explain(
    model: Any,
    target: str | FusionTarget | Target = "cpu",
    *,
    options: FusionOptions | None = None,
) -> Report:
    """The report of compiling `model` for `target`, a path or what else `rlx.load` takes among
    them; no code is made. An executable, or a result of a compile, is reported as it is."""
    from rlx.explain.build import report_of
    from rlx.ir.bundle import Bundle
    from rlx.pipeline import CompilePipeline, CompileResult

    if hasattr(model, "explain"):  # a program, or one for each sort of inputs
        return model.explain()
    if isinstance(model, CompileResult):
        return report_of(model)
    held = _loaded(model)
    if held is not model:
        return explain(held, target, options=options)
    more = getattr(model, "decisions", ()) if isinstance(model, Bundle) else ()
    graph = model.graph if isinstance(model, Bundle) else model
    return report_of(CompilePipeline(_target(target), options=options).compile(graph), more)


@public
def why(report: Report, name: str) -> Why:
    """What became of a node, from the block it was part of to its buffer."""
    from rlx.explain.node_history import follow

    return follow(report, name)


@public
def diff(before: Report, after: Report) -> Difference:
    """What is different between two compiles: kernels, bytes, arena, time, decisions."""
    from rlx.explain.compare import compare

    return compare(before, after)


@public
def replay(model: Any, report: Report | str) -> Graph:
    """The optimised graph, made anew from the model, or its path, and a report (or its JSON)
    alone."""
    from rlx.explain.replay_report import replayed

    return replayed(_loaded(model), report)


def _loaded(model: Any) -> Any:
    """What is in a file, where it is a path or another source of a model."""
    from rlx.frontends.files import SOURCE, load
    from rlx.ir.bundle import Bundle

    is_source = isinstance(model, str) or (not isinstance(model, Bundle) and SOURCE.accepts(model))
    return load(model) if is_source else model


def _target(given: str | FusionTarget | Target) -> Target:
    """What the backend of that name claims; the documented target where there is none."""
    from rlx.backends.registry import target_of
    from rlx.cost.target import FusionTarget, Target

    if isinstance(given, Target):
        return given
    return target_of(given.value if isinstance(given, FusionTarget) else given)


class Explain(ModuleType):
    """The package as a function: `rlx.explain(model)`."""

    why, diff, replay = staticmethod(why), staticmethod(diff), staticmethod(replay)

    @public
    def __call__(
        self,
        model: Any,
        target: str | FusionTarget | Target = "cpu",
        *,
        options: FusionOptions | None = None,
    ) -> Report:
        return explain(model, target, options=options)

    def __dir__(self) -> list[str]:
        return sorted(("diff", "replay", "why"))


package = cast(Explain, sys.modules[__name__])
"""This package as what it can do: type checkers know no modules that can be called."""
package.__class__ = Explain
