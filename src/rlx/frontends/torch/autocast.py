"""Regions of automatic mixed precision, with the casts that torch makes in them written out.

Torch traces a graph above autocast: its ops have the operands that the user gave them, and regions
are marked by `_enter_autocast` and `_exit_autocast`, or are graphs of `wrap_with_autocast`. Which
operands of an op are cast, and to what, is read off torch: the op is run on fake tensors under the
region's autocast.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import Any

from rlx.core.errors import UnsupportedError
from rlx.frontends.torch.namespaces import pytree, torch

HOST = "cpu"
_ENTER, _EXIT, _WRAP = "_enter_autocast", "_exit_autocast", "wrap_with_autocast"
_INLINED = {_WRAP: 4, "wrap_with_set_grad_enabled": 1, "tag_activation_checkpoint": 0, "wrap": 0}
"""Ops that run a graph and nothing else → the argument that is the graph. Its operands follow."""


@dataclass(frozen=True, slots=True)
class Region:
    """What `torch.autocast` was asked for on the host; of other devices nothing is cast here."""

    dtype: Any
    is_enabled: bool

    @classmethod
    def ambient(cls) -> Region:
        """Of the code that runs now."""
        return cls(torch.get_autocast_dtype(HOST), torch.is_autocast_enabled(HOST))

    def inner(self, device: str, dtype: Any = None, enabled: bool = True, *_: Any) -> Region:
        """A region inside of this one."""
        return Region(dtype or self.dtype, enabled) if device == HOST else self

    def context(self) -> Any:
        return torch.autocast(HOST, self.dtype, self.is_enabled, cache_enabled=False)


def with_casts(module: Any, ambient: Region) -> Any:
    """The graph with casts in the place of regions; itself where it has none."""
    if not ambient.is_enabled and not _has_regions(module):
        return module
    build = _Build(module)
    build.nodes(module, {}, ambient)
    made = torch.fx.GraphModule({**_attributes(module), **build.modules}, build.graph)
    made.meta = module.meta
    return made


def _has_regions(module: Any) -> bool:
    graphs = [m.graph for m in module.modules() if isinstance(m, torch.fx.GraphModule)]
    return any(_name(n) in (_ENTER, _WRAP) for g in graphs for n in g.nodes)


def _attributes(module: Any) -> dict[str, Any]:
    return {n.target: _attribute(module, n) for n in module.graph.nodes if n.op == "get_attr"}


def _attribute(module: Any, node: Any) -> Any:
    value = module
    for part in node.target.split("."):
        value = getattr(value, part)
    return value


def _name(node: Any) -> str:
    return getattr(node.target, "__name__", "") if node.op == "call_function" else ""


@dataclass(slots=True)
class _Build:
    """A graph like another, in which every op has the operands that it computes with."""

    module: Any
    graph: Any = field(default_factory=lambda: torch.fx.Graph())
    modules: dict[str, Any] = field(default_factory=dict[str, Any])

    def nodes(self, module: Any, env: dict[Any, Any], region: Region) -> Any:
        """Copy the nodes of a graph; placeholders that are known stand for what they are. The
        result of a graph inside is what it gives."""
        outer = [region]
        for node in module.graph.nodes:
            if node in env:
                continue
            if _name(node) == _ENTER:
                outer.append(outer[-1].inner(*node.args))
            elif _name(node) == _EXIT:
                outer.pop()
            elif node.op == "output" and module is not self.module:
                return torch.fx.map_arg(node.args[0], env.__getitem__)
            else:
                env[node] = self._node(module, node, env, outer[-1])
        return None

    def _node(self, module: Any, node: Any, env: dict[Any, Any], region: Region) -> Any:
        if (at := _INLINED.get(_name(node))) is not None:
            inner = region.inner(*node.args[:at]) if _name(node) == _WRAP else region
            operands = torch.fx.map_arg(list(node.args[at + 1 :]), env.__getitem__)
            return self._inlined(_attribute(module, node.args[at]), operands, inner)
        if _name(node) == "getitem" and not isinstance(env[node.args[0]], torch.fx.Node):
            return env[node.args[0]][node.args[1]]
        copied = self.graph.node_copy(node, env.__getitem__)
        if node.op == "get_attr" and module is not self.module:
            copied.target = self._named(_attribute(module, node))
        if node.op == "call_function" and "val" in node.meta:
            self._settle(copied, node, region)
        return copied

    def _inlined(self, inside: Any, operands: Sequence[Any], region: Region) -> Any:
        places = [n for n in inside.graph.nodes if n.op == "placeholder"]
        return self.nodes(inside, dict(zip(places, operands, strict=True)), region)

    def _named(self, value: Any) -> str:
        name = f"of_region_{len(self.modules)}"
        self.modules[name] = value
        return name

    def _settle(self, copied: Any, node: Any, region: Region) -> None:
        """Cast the operands of a copied op, and state what it gives now."""
        casts = region.is_enabled and _is_cast(node.target)
        operands = zip(copied.all_input_nodes, node.all_input_nodes)
        if not casts and all(_dtypes(a) == _dtypes(b) for a, b in operands):
            return
        if not isinstance(node.target, torch._ops.OpOverload):
            raise UnsupportedError(f"{_name(node)} in a region of automatic mixed precision")
        fakes = pytree.tree_map(_fake, (copied.args, copied.kwargs), is_leaf=_is_node)
        result, dtypes = _observed(copied.target, fakes, region if casts else None)
        with self.graph.inserting_before(copied):
            replaced = {
                n: self._cast(n, dtypes[id(n.meta["val"])])
                for n in copied.all_input_nodes
                if id(n.meta.get("val")) in dtypes
            }
        for old, new in replaced.items():
            copied.replace_input_with(old, new)
        copied.meta["val"] = _restated(node.meta["val"], result)

    def _cast(self, operand: Any, dtype: Any) -> Any:
        made = self.graph.call_function(torch.ops.aten.to.dtype, (operand, dtype))
        made.meta = {**operand.meta, "val": _as_dtype(operand.meta["val"], dtype)}
        return made


def _is_node(value: Any) -> bool:
    return isinstance(value, torch.fx.Node)


def _fake(leaf: Any) -> Any:
    return leaf.meta["val"] if _is_node(leaf) else leaf


def _dtypes(node: Any) -> list[Any]:
    fakes = pytree.tree_leaves(node.meta.get("val"))
    return [f.dtype for f in fakes if isinstance(f, torch.Tensor)]


def _is_cast(target: Any) -> bool:
    """Has autocast a rule for this op?"""
    if not isinstance(target, torch._ops.OpOverload):
        return bool(isinstance(target, torch._ops.HigherOrderOperator))
    has_kernel: Callable[[str, str], bool] = torch._C._dispatch_has_kernel_for_dispatch_key
    return has_kernel(target.name(), "AutocastCPU")


def _observed(target: Any, fakes: Any, region: Region | None) -> tuple[Any, dict[int, Any]]:
    """The fake results of an op, and the dtypes to which it first casts operands, by identity."""
    args, kwargs = fakes
    operands = [f for f in pytree.tree_leaves(fakes) if isinstance(f, torch.Tensor)]
    mode = next((f.fake_mode for f in operands if hasattr(f, "fake_mode")), None)
    seen = _casts_of(operands)
    under = region.context() if region is not None else torch.autocast(HOST, enabled=False)
    with mode or contextlib.nullcontext(), torch.no_grad(), _no_new_symbols(mode), under, seen:
        return target(*args, **kwargs), seen.dtypes


@contextlib.contextmanager
def _no_new_symbols(mode: Any) -> Generator[None]:
    """Sizes that data decides have their symbols already."""
    env = getattr(mode, "shape_env", None)
    with contextlib.nullcontext() if env is None else env.ignore_fresh_unbacked_symbols():
        yield


def _casts_of(operands: Sequence[Any]) -> Any:
    """A mode that notes the casts of operands before anything is computed."""
    from torch.utils._python_dispatch import (  # pyright: ignore[reportMissingImports]
        TorchDispatchMode,
    )

    class Casts(TorchDispatchMode):  # pyright: ignore[reportUntypedBaseClass]
        def __init__(self) -> None:
            super().__init__()
            self.dtypes: dict[int, Any] = {}
            self.is_over = False

        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            is_cast = func is torch.ops.aten._to_copy.default
            self.is_over |= not is_cast and func.namespace != "prim"  # which asks for a device
            if is_cast and not self.is_over and any(args[0] is o for o in operands):
                self.dtypes[id(args[0])] = kwargs["dtype"]
            return func(*args, **(kwargs or {}))

    return Casts()


def _restated(before: Any, after: Any) -> Any:
    """What torch stated of results, with the dtypes that they have now."""
    if isinstance(before, tuple | list):
        return type(before)(_restated(b, a) for b, a in zip(before, after, strict=True))
    is_other = isinstance(before, torch.Tensor) and before.dtype != after.dtype
    return _as_dtype(before, after.dtype) if is_other else before


def _as_dtype(fake: Any, dtype: Any) -> Any:
    with fake.fake_mode, torch.no_grad():
        return fake.to(dtype)
