"""Graphs of Dynamo's with tensors and numbers as inputs, and nothing else.

Some have tensors as attributes, such as the states of an optimiser. Tracing runs a graph, and an op
in place changes an attribute there and then, where an input is fake; AOTAutograd makes inputs of
the parameters and buffers of a module, too. The graphs of compiled autograd take lists.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from rlx.core.errors import UnsupportedError
from rlx.frontends.torch.dynamo.trace import placeholders_of
from rlx.frontends.torch.importer import attributes_of
from rlx.frontends.torch.namespaces import torch

ATTRIBUTE = "rlx_attribute"
"""In the meta data of an input: it was an attribute."""


@dataclass(frozen=True, slots=True)
class PlainInputs:
    """A graph whose inputs are its attributes, then what it was given, without lists."""

    module: Any
    inputs: list[Any]
    attributes: list[Any]
    has_lists: bool

    @classmethod
    def of(cls, module: Any, inputs: Sequence[Any]) -> PlainInputs:
        has_lists = any(isinstance(i, list | tuple) for i in inputs)
        flat, attributes = _lifted(_unpacked(module) if has_lists else module)
        return cls(flat, [*attributes, *_items(inputs)], attributes, has_lists)

    def called(self, program: Callable[..., Any]) -> Callable[..., Any]:
        """A program of the plain inputs as a function of those that Dynamo gives."""
        own = functools.partial(program, *self.attributes) if self.attributes else program
        return (lambda *given: own(*_taken(given))) if self.has_lists else own


def _items(values: Sequence[Any]) -> list[Any]:
    """Values, and in the place of a list what is in it."""
    return [v for g in values for v in (g if isinstance(g, list | tuple) else [g])]


def _taken(given: Sequence[Any]) -> list[Any]:
    """The items of lists, which are the callee's: nobody else holds them while it runs."""
    flat = _items(given)
    for each in given:
        if isinstance(each, list):
            each.clear()  # pyright: ignore[reportUnknownMemberType]
    return flat


def _unpacked(module: Any) -> Any:
    """The graph with the items of lists as inputs."""
    graph, env = torch.fx.Graph(), dict[Any, Any]()
    for node in placeholders_of(module):
        fakes = node.meta.get("example_value")
        if isinstance(fakes, list | tuple):
            env |= _item_places(graph, node, fakes)
        else:
            env[node] = _copied(graph, node, env)
    for node in (n for n in module.graph.nodes if n not in env and n.op != "placeholder"):
        env[node] = _copied(graph, node, env)
    return _like(module, graph, module._param_name_to_source)


def _item_places(graph: Any, node: Any, fakes: Sequence[Any]) -> dict[Any, Any]:
    """For each node that is an item of a list the input that it becomes."""
    if any(u.target is not operator.getitem for u in node.users):
        raise UnsupportedError(f"the list {node.name} of the graph is used as a whole")
    places = [graph.placeholder(f"{node.name}_{i}") for i in range(len(fakes))]
    for place, fake in zip(places, fakes, strict=True):
        place.meta, place._dynamo_source = {"example_value": fake}, None
    return {user: places[user.args[1]] for user in node.users}


def _lifted(module: Any) -> tuple[Any, list[Any]]:
    """The graph with its tensors as inputs before the others, and these tensors."""
    attribute = attributes_of(module)
    reads = [n for n in module.graph.nodes if n.op == "get_attr"]
    tensors = {n.target: v for n in reads if _is_tensor(v := attribute(n.target))}
    if not tensors:
        return module, []
    graph, env = torch.fx.Graph(), dict[Any, Any]()
    for node in reads:
        if node.target in tensors and node.target not in env:
            env[node.target] = _placeholder(graph, node, module._param_name_to_source[node.target])
    for node in module.graph.nodes:
        is_tensor = node.op == "get_attr" and node.target in tensors
        env[node] = env[node.target] if is_tensor else _copied(graph, node, env)
    return _like(module, graph, {}), list(tensors.values())


def _placeholder(graph: Any, read: Any, source: Any) -> Any:
    """An input in the place of an attribute that a node reads."""
    made = graph.placeholder(read.target.replace(".", "_"))
    made.meta = {"example_value": read.meta["example_value"], ATTRIBUTE: True}
    made._dynamo_source = source
    return made


def _copied(graph: Any, node: Any, env: dict[Any, Any]) -> Any:
    made = graph.node_copy(node, env.__getitem__)
    if hasattr(node, "_dynamo_source"):
        made._dynamo_source = node._dynamo_source
    return made


def _like(module: Any, graph: Any, sources: Any) -> Any:
    """A module of this graph, of which torch knows that it is Dynamo's."""
    made = torch.fx.GraphModule(module, graph)
    made.meta, made._param_name_to_source = module.meta, sources
    return made


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)
