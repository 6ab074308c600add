"""Keys of compiled programs: hashes of all that a plan and its code depend on."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

from rlx._version import __version__
from rlx.core.disk_cache import key_of
from rlx.cost.target import Target
from rlx.ir.bundle import Bundle
from rlx.ir.hir import HirModule
from rlx.ir.lir import LirModule
from rlx.ir.mir import Graph, MirModule, Node
from rlx.ir.module import GraphModule
from rlx.passes.options import FusionOptions
from rlx.runtime.artefact_file import KIND


def model_name(model: Any) -> str:
    return str(getattr(model, "name", "the model"))


def request_key(model: Any, target: Target, options: FusionOptions) -> str:
    """The model's name and a hash of all that a plan depends on: input graph, options, target and
    version."""
    facts = repr([model_digest(model), options.text(), target.digest(), __version__])
    return f"{_hash(model_name(model))}-{_hash(facts)}"


def name_prefix(name: str) -> str:
    """What the keys of all entries of models of a name begin with."""
    return key_of(KIND, _hash(name))


def entry_prefix(key: str) -> str:
    """What the keys of all entries of a request begin with."""
    return "-".join(key_of(KIND, part) for part in key.split("-"))


def entry_key(key: str, identity: str) -> str:
    """Of the entry of a request: its code depends on the backend's identity beside the plan."""
    return f"{entry_prefix(key)}-{_hash(identity)}"


def _hash(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def model_digest(model: Any) -> str:
    match model:
        case GraphModule():
            return f"{model.stage.name} {model_digest(model.value)}"
        case HirModule():
            return f"{model.policy.name} {model_digest(model.graph)}"
        case MirModule():
            return model_digest(model.graph)
        case Graph():
            return f"{model.name} {model.digest()}"
        case LirModule():
            return model.fingerprint
        case Bundle():
            return model.digest
        case _:
            from rlx.pipeline import cannot_compile

            raise cannot_compile(model)


def comes_with_rlx(model: Any) -> bool:
    """Is the meaning of every op of the model that of rlx? What a program brings along may mean
    something else tomorrow, under the same name."""
    if isinstance(model, Bundle):
        return model.is_of_rlx
    return all(
        n.op != "custom" and n.decl.reference.__module__.startswith("rlx.") for n in _nodes(model)
    )


def _nodes(model: Any) -> Iterator[Node]:
    held = model.value if isinstance(model, GraphModule) else model
    module = held.mir if isinstance(held, LirModule) else held
    graphs: list[Graph] = [module if isinstance(module, Graph) else module.graph]
    for graph in graphs:
        for node in graph.order():
            yield node
            graphs += [v for v in node.attrs.values() if isinstance(v, Graph)]
