"""The model of a graph of ATen ops: its inputs are weights, arguments and sizes."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from rlx.core.dtype import DType
from rlx.core.errors import UnsupportedError
from rlx.core.shape import Shape
from rlx.frontends.named_dims import NamedDims
from rlx.frontends.torch.aliasing import written_bases
from rlx.frontends.torch.dynamo.plain_inputs import ATTRIBUTE
from rlx.frontends.torch.dynamo.trace import placeholders_of, shape_env
from rlx.frontends.torch.eager import EagerGraph, Place
from rlx.frontends.torch.guards import NO_GUARDS, Guards
from rlx.frontends.torch.importer import attributes_of
from rlx.frontends.torch.model import Builder, TorchModel
from rlx.frontends.torch.namespaces import torch
from rlx.frontends.torch.reading import Reading
from rlx.frontends.torch.signature import Argument

_KEYS = re.compile(r"\['?([^'\]]+)'?\]|\.(\w+)")
_UNNAMED = frozenset({"_modules", "_parameters", "_buffers"})


@dataclass(frozen=True, slots=True)
class Given:
    """An input of a graph. A weight is a tensor that calls give again and again."""

    name: str
    value: Any = None
    is_weight: bool = False


def given_by_dynamo(module: Any, inputs: Sequence[Any]) -> list[Given]:
    """What Dynamo states of the inputs of its graph, by the names that the user has for them."""
    taken: set[str] = set()
    return [
        Given(_unique(input_name(source), taken), value, is_static(source, value))
        for source, value in zip(placeholders_of(module), inputs, strict=True)
    ]


def model_of(
    graph_module: Any, inputs: Sequence[Given], name: str
) -> tuple[TorchModel, dict[str, int]]:
    """The model of a graph of ATen ops, and the place of each weight among the inputs."""
    nodes = placeholders_of(graph_module)
    env = shape_env([n.meta.get("val") for n in nodes])
    ranges = env.var_to_range if env is not None else {}
    operands = tuple(map(Place, range(len(nodes))))

    def read(module: Any, known: NamedDims, _: Guards) -> TorchModel:
        build = Builder(name, ranges, {}, known)
        return _imported(build, EagerGraph(module, operands), inputs)

    # Dynamo itself checks its guards
    model = Reading(EagerGraph(graph_module, operands), ranges, {}, NO_GUARDS, read).model()
    return model, {given.name: place for place, given in enumerate(inputs) if given.is_weight}


def _imported(build: Builder, eager: EagerGraph, inputs: Sequence[Given]) -> TorchModel:
    module, nodes = eager.module, placeholders_of(eager.module)
    written = written_bases(module.graph)
    sized = bound_symbols([n.meta.get("val") for n in nodes])
    for place, (node, given) in enumerate(zip(nodes, inputs, strict=True)):
        fake = node.meta.get("val")
        if isinstance(fake, torch.Tensor):
            _require_host(fake, given.name)
            if given.is_weight and node not in written:
                build.param(node, given.name, given.value)
                build.sources[node] = Argument(given.name, place)
            elif node.users or _has_symbols(fake):
                build.argument(node, place, given.name, as_stored=node not in written)
        elif isinstance(fake, torch.SymInt):
            _size(build, node, place, given.name, sized)
        else:
            build.env[node] = fake if isinstance(fake, int) else given.value
    names = [f"output{i}" for i in range(len(results_of(module.graph)))]
    return build.model(eager, constants_of(module), names, None, None, len(nodes))


def results_of(graph: Any) -> list[Any]:
    """The flat results: nodes, and values that are known."""
    (last,) = [n for n in graph.nodes if n.op == "output"]
    found = last.args[0]
    return list(found) if isinstance(found, tuple | list) else [found]


def constants_of(graph_module: Any) -> Callable[[str], Any]:
    """Attributes by name. A constant that was made while tracing is a fake tensor that has the real
    one with it, unless it is large."""
    found = attributes_of(graph_module)

    def real(name: str) -> Any:
        value = found(name)
        if not hasattr(value, "fake_mode"):
            return value
        if value.constant is None:
            raise UnsupportedError(f"the constant {name} of the graph has no values while tracing")
        return value.constant

    return real


def is_static(source: Any, given: Any) -> bool:
    """Is it a parameter or buffer of a module, which calls give again and again?"""
    known = (source.meta.get("tensor_dict") or {}).get("_dynamo_static_input_type")
    known = known or source.meta.get(ATTRIBUTE)
    return known is not None or isinstance(given, torch.nn.Parameter)


def _size(build: Builder, node: Any, place: int, name: str, sized: set[str]) -> None:
    """A SymInt is a dim where a tensor has that size, else a number that calls give."""
    value = node.meta["val"]
    if value.node.expr.is_Integer or str(value.node.expr) in sized:
        build.env[node] = build.importer.sizes.of(value)
        return
    if not node.users:
        return
    made = build.graph.input(name, Shape((), DType.I64))
    build.env[node], build.sources[node] = made, Argument(name, place)

    def as_size() -> Any:
        from rlx import ops

        return ops.as_size(made).shape.dims[0]

    build.importer.sizes.defer(value, as_size)


def bound_symbols(fakes: Sequence[Any]) -> set[str]:
    """Symbols that are the size of an axis of some input."""
    sizes = (d for f in fakes if isinstance(f, torch.Tensor) for d in f.shape)
    exprs = (d.node.expr for d in sizes if isinstance(d, torch.SymInt))
    return {str(e) for e in exprs if e.is_Symbol}


def _has_symbols(fake: Any) -> bool:
    return any(isinstance(d, torch.SymInt) for d in fake.shape)


def _require_host(fake: Any, name: str) -> None:
    if fake.device.type != "cpu":
        raise UnsupportedError(
            f"input {name!r} is on {fake.device}; rlx takes graphs of tensors in the host's memory"
        )


def input_name(node: Any) -> str:
    """Dynamo's source as the user writes it: `L['self']._modules['fc']._parameters['weight']` is
    fc.weight, `L['x']` is x."""
    source = getattr(node, "_dynamo_source", None)
    text = getattr(source, "name", "") if source is not None else ""
    text = text() if callable(text) else text
    parts = [a or b for a, b in _KEYS.findall(str(text))]
    is_of_module = any(p in _UNNAMED for p in parts)
    kept = [p for p in (parts[1:] if is_of_module else parts) if p not in _UNNAMED]
    return ".".join(kept) or node.name


def _unique(name: str, taken: set[str]) -> str:
    called, number = name, 2
    while called in taken:
        called, number = f"{name}.{number}", number + 1
    taken.add(called)
    return called
