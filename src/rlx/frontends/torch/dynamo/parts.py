"""Parts of a functional graph: what rlx supports is compiled, the rest is run by torch between."""

from __future__ import annotations

import logging
import operator
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rlx.core.errors import Error, UnsupportedError
from rlx.frontends.torch.aliasing import is_view, written_nodes
from rlx.frontends.torch.dynamo.graph import Given, bound_symbols
from rlx.frontends.torch.dynamo.trace import placeholders_of
from rlx.frontends.torch.importer import attributes_of
from rlx.frontends.torch.missing import missing
from rlx.frontends.torch.model import Builder
from rlx.frontends.torch.namespaces import torch
from rlx.frontends.torch.node_call import Unused

LOG = logging.getLogger("rlx")
Compile = Callable[[Any, Sequence[Given], str], Callable[..., Any]]


def compiled_in_parts(
    graph_module: Any, given: Sequence[Given], name: str, compile_graph: Compile
) -> Callable[..., Any]:
    """A graph in the largest parts that rlx supports, with torch's own ops between them. What stays
    with torch is logged, with its line."""
    refused = refused_nodes(graph_module)
    known = dict(zip((n.name for n in placeholders_of(graph_module)), given, strict=True))
    whole, parts = _split(graph_module, frozenset(refused))
    num_compiled = 0
    for i, call in enumerate(parts):
        part = whole.get_submodule(call.target)
        inputs = [known.get(n.name, Given(n.name)) for n in call.args]
        try:
            _require_measured(part)
            program = compile_graph(part, inputs, f"{name} part {i + 1}")
        except Error as error:
            LOG.warning("%s: part %d stays with torch: %s", name, i + 1, error)
            continue
        whole.delete_submodule(call.target)
        setattr(whole, call.target, _unpacked(program, part.graph))
        num_compiled += 1
    _report(name, refused, num_compiled)
    return whole.forward


def _report(name: str, refused: Mapping[Any, Error], num_parts: int) -> None:
    """One record per op that stays with torch."""
    for text, count in Counter(map(str, refused.values())).items():
        times = "" if count == 1 else f" ({count} times)"
        LOG.warning("%s runs in %d parts, with torch's ops between: %s%s",
                    name, num_parts, text, times)  # fmt: skip


def _require_measured(part: Any) -> None:
    """Every symbol of a size must be the size of an axis: b·s alone tells neither."""
    fakes = [n.meta.get("val") for n in placeholders_of(part)]
    sizes = (d for f in fakes if isinstance(f, torch.Tensor) for d in f.shape)
    exprs = [d.node.expr for d in sizes if isinstance(d, torch.SymInt)]
    free = {str(s) for e in exprs for s in e.free_symbols}
    if unmeasured := sorted(free - bound_symbols(fakes)):
        raise UnsupportedError(f"no input of the part has an axis of size {unmeasured[0]}")


def _unpacked(program: Callable[..., Any], graph: Any) -> Callable[..., Any]:
    """A part gives one result by itself, several as a list."""
    (last,) = [n for n in graph.nodes if n.op == "output"]
    if isinstance(last.args[0], tuple | list):
        return program
    return lambda *flat: program(*flat)[0]


def _split(graph_module: Any, refused: frozenset[Any]) -> tuple[Any, list[Any]]:
    """The graph with each part as a module, and the calls of these."""
    from torch.fx.passes.infra.partitioner import (  # pyright: ignore[reportMissingImports]
        CapabilityBasedPartitioner,
    )
    from torch.fx.passes.operator_support import (  # pyright: ignore[reportMissingImports]
        create_op_support,
    )

    def is_supported(_: Any, node: Any) -> bool:
        made_by = node.args[0] if node.target is operator.getitem else node
        return node.op == "call_function" and made_by not in refused

    support = create_op_support(is_supported)
    splitter = CapabilityBasedPartitioner(graph_module, support, allows_single_node_partition=True)
    found = [p for p in splitter.propose_partitions() if any(map(_computes, p.nodes))]
    whole = splitter.fuse_partitions(found, prefix="rlx_part_")
    calls = [n for n in whole.graph.nodes if n.op == "call_module"]
    return whole, [n for n in calls if n.target.startswith("rlx_part_")]


def _computes(node: Any) -> bool:
    """Does it compute values of a tensor, rather than show them otherwise, or a size?"""
    if node.target is operator.getitem or is_view(node):
        return False
    fake = node.meta.get("val")
    return isinstance(fake, torch.Tensor | tuple | list)


# -- what is supported ----------------------------------------------------------------------------


def refused_nodes(graph_module: Any) -> dict[Any, Error]:
    """The ops that rlx does not run, each with the reason."""
    found: dict[Any, Error] = {}
    for node in graph_module.graph.nodes:
        if node.op != "call_function" or node.target is operator.getitem:
            continue
        error = refusal(node)
        if error is not None:
            found[node] = error
    return found


def refusal(node: Any) -> Error | None:
    """Why a node cannot be imported on its own; None where it can."""
    try:
        _require_alone(node)
        made = _imported(node)
        for user in node.users:
            if user.target is operator.getitem and isinstance(made[user.args[1]], Unused):
                what = made[user.args[1]].what
                raise UnsupportedError(f"{what} of it are used, which rlx does not compute")
    except Error as error:
        return missing(node, error)
    return None


def _require_alone(node: Any) -> None:
    """A part has values between its inputs and results, and no memory of others, nor graphs."""
    if written_nodes(node):
        raise UnsupportedError("it writes to a tensor of its caller's")
    if any(n.op == "get_attr" and not _is_tensor(n) for n in node.all_input_nodes):
        raise UnsupportedError("graphs inside it, in a graph that rlx runs in parts")


def _is_tensor(node: Any) -> bool:
    return isinstance(node.meta.get("val"), torch.Tensor)


def _imported(node: Any) -> Any:
    """The results of a graph of this node alone."""
    graph, copies = torch.fx.Graph(), dict[Any, Any]()
    for operand in node.all_input_nodes:
        copies[operand] = graph.placeholder(operand.name)
        copies[operand].meta = dict(operand.meta)
    alone = graph.node_copy(node, copies.__getitem__)
    graph.output(alone)
    build = Builder("part", {}, {})
    for i, copied in enumerate(copies.values()):
        fake = copied.meta.get("val")
        if isinstance(fake, torch.SymInt):
            build.env[copied] = build.importer.sizes.of(fake)
        else:
            build.argument(copied, i, copied.name)
    return build.importer.run(graph, build.env, attributes_of(None))
