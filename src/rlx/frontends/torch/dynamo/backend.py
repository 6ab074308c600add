"""The backend function of torch.compile, its options, and what stays with torch."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rlx.core.errors import Error
from rlx.frontends.torch.dynamo.breaks import graph_name, is_whole, report_break
from rlx.frontends.torch.dynamo.calls import GraphProgram
from rlx.frontends.torch.dynamo.functional import CompileForward, by_autograd
from rlx.frontends.torch.dynamo.graph import Given, given_by_dynamo, model_of
from rlx.frontends.torch.dynamo.parts import compiled_in_parts
from rlx.frontends.torch.dynamo.plain_inputs import PlainInputs
from rlx.frontends.torch.dynamo.trace import traced
from rlx.frontends.torch.missing import MissingOp
from rlx.frontends.torch.namespaces import torch
from rlx.runtime.session import Session

LOG = logging.getLogger("rlx")
OF_SESSION = ("target", "like", "threads", "device", "cache", "dump", "tune", "mesh", "donate")
OF_COMPILE = ("precision", "f64", "options")


@dataclass(frozen=True, slots=True)
class Options:
    """What `torch.compile(…, options={…})` asks of rlx: options of `rlx.compile`, and `strict`, as
    which `fullgraph=True` counts: ops that would stay with torch are errors."""

    session: Mapping[str, Any] = field(default_factory=dict[str, Any])
    compile: Mapping[str, Any] = field(default_factory=dict[str, Any])
    is_strict: bool = False
    weights: str = "compared"
    """How writes to weights are noticed: see `TorchProgram.watch_weights`."""

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Options:
        known = (*OF_SESSION, *OF_COMPILE, "strict", "weights")
        for name in given:
            if name not in known:
                raise Error(
                    f"torch.compile(backend='rlx') has no option {name!r}. "
                    f"There are {', '.join(known)}."
                )
        session = {k: given[k] for k in OF_SESSION if k in given}
        session.setdefault("threads", torch.get_num_threads())
        compiled = {k: given[k] for k in OF_COMPILE if k in given}
        return cls(session, compiled, bool(given.get("strict", False)) or is_whole(),
                   given.get("weights", "compared"))  # fmt: skip


def rlx(
    module: Any,
    inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Callable[..., Any]:
    """The backend `rlx` of torch.compile: a function of Dynamo's flat inputs."""
    asked = Options.of(options or {})
    if mode is not None:
        LOG.warning("mode=%r is for inductor; rlx takes options={…}", mode)
    name = graph_name()
    report_break(module, name)
    if not any(n.op not in ("placeholder", "output") for n in module.graph.nodes):
        return module.forward
    try:
        plain = PlainInputs.of(module, inputs)
        return plain.called(_compiled(plain.module, plain.inputs, name, asked))
    except Error as error:
        if asked.is_strict:
            raise
        LOG.warning("%s stays with torch: %s", name, error)
        return module.forward


def _compiled(module: Any, inputs: Sequence[Any], name: str, asked: Options) -> Callable[..., Any]:
    """The graph as it is; else functional, where a backward pass is needed or parts of it stay with
    torch."""
    given = given_by_dynamo(module, inputs)
    if needs_grad(inputs):
        LOG.warning(
            "%s: something requires grad. rlx runs the forward pass, which keeps values for "
            "torch's backward pass; under torch.no_grad() or torch.inference_mode() it keeps none.",
            name,
        )  # fmt: skip
        return by_autograd(module, inputs, given, in_parts(name, asked))
    try:
        return compiled_graph(traced(module), given, name, asked).__call__
    except MissingOp:
        if asked.is_strict:
            raise
    except Error as error:
        LOG.info("%s is made functional: %s", name, error)
    return by_autograd(module, inputs, given, in_parts(name, asked))


def in_parts(name: str, asked: Options) -> CompileForward:
    """Compiles functional graphs: whole if rlx supports all of their ops, else in parts."""

    def compile_graph(graph_module: Any, given: Sequence[Given], name: str) -> Callable[..., Any]:
        return compiled_graph(graph_module, given, name, asked).__call__

    def compile_forward(graph_module: Any, given: Sequence[Given]) -> Callable[..., Any]:
        try:
            return compile_graph(graph_module, given, name)
        except Error:
            if asked.is_strict:
                raise
            return compiled_in_parts(graph_module, given, name, compile_graph)

    return compile_forward


def needs_grad(inputs: Sequence[Any]) -> bool:
    """Must the results of a call be differentiable?"""
    return torch.is_grad_enabled() and any(
        isinstance(i, torch.Tensor) and i.requires_grad for i in inputs
    )


def compiled_graph(
    graph_module: Any, given: Sequence[Given], name: str, asked: Options
) -> GraphProgram:
    """A graph of ATen ops, imported and compiled."""
    model, places = model_of(graph_module, given, name.partition("[")[0])
    made = Session(**asked.session).compile(model, **asked.compile)
    program = GraphProgram(made.model, made.executable, frozenset(), places, made.others)
    if asked.weights != "compared":
        program.watch_weights(asked.weights)
    return program
