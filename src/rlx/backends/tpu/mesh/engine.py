"""jax on a mesh: the same functions, with the places of their values stated.

XLA's partitioner (GSPMD) makes of a function and the shardings of its arguments, results and
products what each device does. A sharding never changes what a function means, so a wrong or
missing rule of axes costs time and no results; functions that are written for one device's part, as
`shard_map` takes them, would need every shape and every reduction of the graph rewritten by hand.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rlx.backends.engine.engine import Compiled
from rlx.backends.engine.trace import Traced
from rlx.backends.tpu.engine import JaxEngine
from rlx.backends.tpu.mesh.shard import Sharding, is_placed, shard
from rlx.backends.tpu.namespaces import jax
from rlx.core.shape import Shape
from rlx.ir.mir import Graph, Node
from rlx.ops.op import Array


@dataclass(frozen=True, slots=True)
class MeshCall:
    """A compiled function, and where it reads its arguments."""

    executable: Any
    given: tuple[Any, ...]
    engine: MeshEngine

    def __call__(self, *arrays: Any) -> Sequence[Any]:
        moved = self.engine.moved
        return self.executable(*(moved(a, where) for a, where in zip(arrays, self.given)))


class MeshEngine(JaxEngine):
    """jax on several devices that run one program together."""

    def __init__(self, mesh: Any, graph: Graph) -> None:
        super().__init__(mesh.devices.flat[0])
        self.mesh, self.graph = mesh, graph
        self._known: dict[tuple[tuple[str, int], ...], Sharding] = {}

    @property
    def version(self) -> str:
        axes = " ".join(f"{k}={v}" for k, v in self.axes.items())
        return f"{super().version} {axes}"

    def sharding(self, sizes: Mapping[str, int]) -> Sharding:
        """Of the graph's values, at these sizes of named dims."""
        key = tuple(sorted(sizes.items()))
        if key not in self._known:
            self._known[key] = shard(self.graph, self.axes, sizes)
        return self._known[key]

    def named(self, node: Node, sizes: Mapping[str, int]) -> Any:
        """Where a value lies."""
        spec = self.sharding(sizes).spec(node) if node.graph is self.graph else ()
        return jax.sharding.NamedSharding(self.mesh, jax.sharding.PartitionSpec(*spec))

    def array(self, value: Array) -> Any:
        """A value that every device has whole."""
        whole = jax.sharding.PartitionSpec()
        return jax.device_put(value, jax.sharding.NamedSharding(self.mesh, whole))

    def weight(self, node: Node, value: Array, sizes: Mapping[str, int]) -> Any:
        return jax.device_put(value, self.named(node, sizes))

    def placed(self, node: Node, value: Any, sizes: Mapping[str, int]) -> Any:
        if not is_placed(node) or node.graph is not self.graph:
            return value
        return jax.lax.with_sharding_constraint(value, self.named(node, sizes))

    def jitted(self, function: Compiled) -> Any:
        """With the places of its results; codes of failures are whole."""
        assert isinstance(function, Traced)
        made = [self.named(n, function.sizes) for n in function.segment.outputs]
        whole = jax.sharding.NamedSharding(self.mesh, jax.sharding.PartitionSpec())

        def placed(*arrays: Any) -> tuple[Any, ...]:
            results = function(*arrays)
            where = [*made, whole][: len(results)]
            return tuple(jax.lax.with_sharding_constraint(r, w) for r, w in zip(results, where))

        return self.jit(placed, function)

    def arguments(self, function: Compiled, shapes: Sequence[Shape]) -> list[Any]:
        given = self._given(function)
        structs = (
            jax.ShapeDtypeStruct(s.static_dims, s.dtype.numpy, sharding=where)
            for s, where in zip(shapes, given, strict=True)
        )
        return list(structs)

    def _given(self, function: Compiled) -> tuple[Any, ...]:
        assert isinstance(function, Traced)
        return tuple(self.named(n, function.sizes) for n in function.segment.inputs)

    def called(self, executable: Any, function: Compiled) -> Compiled:
        return MeshCall(executable, self._given(function), self)

    def executable(self, compiled: Compiled) -> Any:
        assert isinstance(compiled, MeshCall)
        return compiled.executable

    @property
    def axes(self) -> dict[str, int]:
        return dict(self.mesh.shape)

    @property
    def all_devices(self) -> list[Any]:
        return list(self.mesh.devices.flat)

    def moved(self, array: Any, where: Any) -> Any:
        """An array of jax where the function reads it; others are put there by the call."""
        if not self.is_own(array) or array.sharding.is_equivalent_to(where, array.ndim):
            return array
        return jax.device_put(array, where)
