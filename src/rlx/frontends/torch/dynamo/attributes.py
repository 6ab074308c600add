"""Tensors that Dynamo keeps as attributes of a graph, such as the states of an optimiser, as its
first inputs.

Tracing runs a graph, and an op in place changes an attribute there and then; an input is fake. It
is also what AOTAutograd does with the parameters and buffers of a module.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from rlx.frontends.torch.importer import attributes_of
from rlx.frontends.torch.namespaces import torch

ATTRIBUTE = "rlx_attribute"
"""In the meta data of an input: it was an attribute."""


def lifted(module: Any) -> tuple[Any, list[Any]]:
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
        env[node] = env[node.target] if is_tensor else graph.node_copy(node, env.__getitem__)
        if hasattr(node, "_dynamo_source"):
            env[node]._dynamo_source = node._dynamo_source
    made = torch.fx.GraphModule(module, graph)
    made.meta, made._param_name_to_source = module.meta, {}
    return made, list(tensors.values())


def _placeholder(graph: Any, read: Any, source: Any) -> Any:
    """An input in the place of an attribute that a node reads."""
    made = graph.placeholder(read.target.replace(".", "_"))
    made.meta = {"example_value": read.meta["example_value"], ATTRIBUTE: True}
    made._dynamo_source = source
    return made


def with_attributes(program: Callable[..., Any], tensors: list[Any]) -> Callable[..., Any]:
    """A function of the other inputs."""
    return functools.partial(program, *tensors) if tensors else program


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)
