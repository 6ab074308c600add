"""How a model is read of an FX graph: once for all sizes where that can be, else for some.

A graph of named dims is one program where sizes follow from each other as rlx can show. Torch has
guards instead: what it found of the sizes that it traced with, and checks at each call. So a graph
may be read again for the sizes of a call: its ops are propagated with these, in torch's own shape
functions, and every size in it is a number.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from rlx.core.dim import Dim, DimLike, is_static
from rlx.core.errors import GraphError, UnsupportedError
from rlx.core.shape import OutOfRange, Shape
from rlx.frontends.dim_ranges import MAX_NARROWED, mended
from rlx.frontends.named_dims import NamedDims, SizeRange
from rlx.frontends.torch.eager import EagerGraph, Place
from rlx.frontends.torch.guards import NO_GUARDS, Guards
from rlx.frontends.torch.namespaces import torch
from rlx.frontends.torch.signature import size_hint, stride_order
from rlx.frontends.torch.sizes import Sizes
from rlx.ir.interface import Leaf
from rlx.ir.interpret import infer_binding

if TYPE_CHECKING:
    from rlx.frontends.torch.model import TorchModel

CallSizes = tuple[Any, ...]
"""Of each flat argument of a call the shape, or the number that it is."""


@dataclass(frozen=True, slots=True)
class Reading:
    """An FX graph, and what makes a model of it."""

    eager: EagerGraph
    ranges: Mapping[Any, Any]
    names: Mapping[str, str]
    """Torch's symbol of a size → the name that the user gave it."""
    guards: Guards
    read: Callable[[Any, NamedDims, Guards], TorchModel]
    """The model of a graph with the same ops, where this is known of named dims, and calls are
    checked for these guards."""
    retrace: Callable[[Sequence[Any]], TorchModel] | None = None
    """Traces the module anew with the arguments of a call, where there is one."""

    def for_call(self, flat: Sequence[Any]) -> TorchModel:
        """The model for calls of the sizes of this one. Where torch's guards do not hold, the graph
        is not what the module computes for them."""
        try:
            return self.at(sizes_of_call(flat))
        except OutOfRange:
            if self.retrace is None:
                raise
            return self.retrace(flat)

    def model(self) -> TorchModel:
        """The model for all sizes, or for those that the ranges of named dims leave. Torch takes
        sizes to be equal that are so at those that it traced with: such get the ranges where they
        are, and the graph is read again. Where that does not help, it is read for the sizes that
        torch traced with."""
        known = NamedDims()
        for _ in range(MAX_NARROWED):
            try:
                return self._with_names(known)
            except (GraphError, UnsupportedError) as error:
                if not mended(known, error):
                    return self.at_traced_sizes(error)
        return self._with_names(known)

    def _with_names(self, known: NamedDims) -> TorchModel:
        return self.read(self.eager.module, known, self.guards).readable(self)

    def at_traced_sizes(self, error: GraphError | UnsupportedError) -> TorchModel:
        """The model for the sizes that torch traced with, as this is wrong with it for others."""
        traced = [_traced_size(i) for i in self._inputs()]
        if not any(_is_open(i) for i in self._inputs()) or None in traced:
            raise error
        try:
            # guards hold there, and need not be known
            return self._at(tuple(traced), NO_GUARDS).readable(self, str(error))
        except (GraphError, UnsupportedError):
            raise error from None

    def at(self, sizes: CallSizes) -> TorchModel:
        """The model for calls of these sizes alone."""
        return self._at(sizes, self.guards)

    def _at(self, sizes: CallSizes, guards: Guards) -> TorchModel:
        known = NamedDims()
        known.narrow({n: SizeRange(s, s) for n, s in self._named_sizes(sizes).items()})
        return self.read(self._propagated(sizes), known, guards)

    def _inputs(self) -> list[Any]:
        """Torch's fake value of each argument, in the order of calls."""
        nodes = [n for n in self.eager.module.graph.nodes if n.op == "placeholder"]
        pairs = zip(self.eager.operands, nodes, strict=True)
        return [n.meta.get("val") for o, n in pairs if isinstance(o, Place)]

    def _named_sizes(self, sizes: CallSizes) -> dict[str, int]:
        """The sizes of named dims, within torch's ranges."""
        dims = Sizes(self.ranges, self.names)
        leaves: list[Leaf] = []
        arrays: dict[str, Any] = {}
        for i, (fake, size) in enumerate(zip(self._inputs(), sizes, strict=True)):
            if isinstance(fake, torch.Tensor | torch.SymInt):
                stated, found = (
                    ((fake,), (size,)) if isinstance(fake, torch.SymInt) else (fake.shape, size)
                )
                shape = Shape([_dim(dims, d, f"{i}.{axis}") for axis, d in enumerate(stated)])
                leaves.append(Leaf("input", f"argument {i}", shape))
                arrays[f"argument {i}"] = _stand(found)
        return infer_binding(leaves, arrays)

    def _propagated(self, sizes: CallSizes) -> Any:
        """A copy of the graph with torch's fake values for these sizes."""
        from torch._subclasses.fake_tensor import (  # pyright: ignore[reportMissingImports]
            FakeTensorMode,
        )
        from torch.fx.experimental.symbolic_shapes import (  # pyright: ignore[reportMissingImports]
            ShapeEnv,
        )

        mode = FakeTensorMode(shape_env=ShapeEnv(), static_shapes=True, allow_non_fake_inputs=True)
        inputs, old = dict(enumerate(sizes)), self._inputs()
        with mode, torch.no_grad():
            fakes = [
                _fake(inputs[o.number], old[o.number])
                if isinstance(o, Place)
                else mode.from_tensor(o, static_shapes=True)
                for o in self.eager.operands
            ]
            module = torch.fx.GraphModule(self.eager.module, copy.deepcopy(self.eager.module.graph))
            try:
                _propagation(module).run(*fakes)
            except Exception as error:
                line = str(error).strip().partition("\n")[0]
                raise UnsupportedError(f"torch itself refuses these sizes: {line}") from error
        return module


def sizes_of_call(flat: Sequence[Any]) -> CallSizes:
    """What a program for one call is for."""
    return tuple(tuple(v.shape) if hasattr(v, "shape") else v for v in flat)


def _fake(size: Any, old: Any) -> Any:
    """A tensor with this shape, in the memory layout that the traced one has."""
    if not isinstance(old, torch.Tensor):
        return size
    order = stride_order(old) or tuple(range(len(size)))
    made = torch.empty([size[a] for a in order], dtype=old.dtype, device=old.device)
    return made.permute(tuple(np.argsort(order).tolist()))


def _propagation(module: Any) -> Any:
    """Runs a graph, and notes what each node gives."""

    class Propagation(torch.fx.Interpreter):
        def run_node(self, n: Any) -> Any:
            value = super().run_node(n)
            if n.op in ("placeholder", "call_function"):
                n.meta = {**n.meta, "val": value}
            return value

    return Propagation(module)


def _dim(dims: Sizes, size: Any, place: str) -> DimLike:
    """The dim of a size. One that torch calls open and has one value for is any that its guards
    hold for: it takes sizes to be above 1, and then only 2 may be below 3."""
    found = dims.of(size)
    return Dim(f"size{place}") if isinstance(size, torch.SymInt) and is_static(found) else found


def _stand(shape: tuple[int, ...]) -> Any:
    """An array of a shape, that takes no memory."""
    return np.broadcast_to(np.zeros((), np.float32), shape)


def _traced_size(fake: Any) -> Any:
    """The shape, or the number, that torch traced with; None where that is not known."""
    if not isinstance(fake, torch.Tensor):
        return size_hint(fake) if isinstance(fake, torch.SymInt) else fake
    hints = tuple(size_hint(d) for d in fake.shape)
    return None if None in hints else hints


def _is_open(fake: Any) -> bool:
    dims = fake.shape if isinstance(fake, torch.Tensor) else (fake,)
    return any(isinstance(d, torch.SymInt) for d in dims)
