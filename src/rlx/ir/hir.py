"""HIR: a graph of blocks, with the policy by which they are lowered.

The graph is an ordinary `Graph` whose nodes may also be rows of the block table, so interning,
provenance, shapes and equality are those of every graph.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from rlx.core.dim import Dim, DimLike
from rlx.core.errors import Error
from rlx.core.public_calls import public_class
from rlx.core.shape import DimBinding, ShapeLike
from rlx.ir.block import FusionPolicy as FusionPolicy
from rlx.ir.mir import Graph, MirModule, Node, Origin
from rlx.ir.op_methods import BlockMethods
from rlx.ops.op import lookup


@public_class
class HirModule(BlockMethods):
    """A module in blocks, and the builder that makes it: every block and op is a method."""

    def __init__(self, name: str = "module", policy: FusionPolicy = FusionPolicy.DIRECT) -> None:
        self.graph = Graph(name)
        self.policy = _checked(policy)

    # -- building ------------------------------------------------------------------------------

    def input(self, name: str, shape: ShapeLike, dtype: Any = None) -> Node:
        """A value given anew on every call; of dims alone the dtype is f32."""
        return self.graph.input(name, shape, dtype)

    def param(self, name: str, shape: ShapeLike, dtype: Any = None) -> Node:
        """A weight: given once, the same for every call; of dims alone the dtype is f32."""
        return self.graph.param(name, shape, dtype)

    def state(self, name: str, shape: ShapeLike, dtype: Any = None, *, init: float = 0.0) -> Node:
        """Memory that a session keeps from call to call, `init` in every element at first."""
        return self.graph.state(name, shape, dtype, init=init)

    def constant(self, value: Any) -> Node:
        """A value known now."""
        return self.graph.constant(value)

    def mir(self, op: str, *inputs: Any, **attrs: Any) -> Any:
        """An op of the table, which lowering leaves as it is."""
        return lookup(op).build(self.graph, inputs, attrs)

    @contextmanager
    def scope(self, label: str) -> Generator[None]:
        """Nodes made inside carry `label` as a block's name, down to every op they become."""
        with self.graph.scope(Origin("block", label)):
            yield

    def named(self, label: str, build: Callable[[HirModule], Any]) -> Any:
        """What `build` makes of this module, labelled."""
        with self.scope(label):
            return build(self)

    def set_outputs(self, outputs: Sequence[Node] | Mapping[str, Node]) -> None:
        """What the module returns, in order; a mapping names the outputs."""
        self.graph.set_outputs(outputs)

    # -- reading -------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """The name of the graph."""
        return self.graph.name

    @property
    def nodes(self) -> tuple[Node, ...]:
        """Every node, inputs before users."""
        return self.graph.nodes

    @property
    def inputs(self) -> tuple[Node, ...]:
        """The inputs, in the order of a call."""
        return self.graph.inputs

    @property
    def params(self) -> tuple[Node, ...]:
        """The weights."""
        return self.graph.params

    @property
    def states(self) -> tuple[Node, ...]:
        """What a session keeps from call to call."""
        return self.graph.states

    @property
    def outputs(self) -> tuple[Node, ...]:
        """The results."""
        return self.graph.outputs

    @property
    def dynamic_symbols(self) -> tuple[Dim, ...]:
        """The named dims of leaves, by name."""
        return self.graph.dynamic_symbols

    @property
    def has_dynamic_dims(self) -> bool:
        """Has it named dims?"""
        return self.graph.has_dynamic_dims

    def __len__(self) -> int:
        return len(self.graph)

    def __eq__(self, other: object) -> bool:
        return self is other or (
            isinstance(other, HirModule)
            and self.policy is other.policy
            and self.graph == other.graph
        )

    __hash__ = None  # pyright: ignore[reportAssignmentType]

    def __copy__(self) -> HirModule:
        return _holding(self.graph.rebuild(), self.policy)

    def __str__(self) -> str:
        from rlx.ir.text import show

        return show(self.graph, "hir", [self.policy.value])

    def __repr__(self) -> str:
        return f"<HirModule {self.name!r}: {len(self)} nodes, {self.policy.value}>"

    # -- other modules -------------------------------------------------------------------------

    def bind(self, binding: DimBinding | Mapping[str, DimLike]) -> HirModule:
        """The module with named dims replaced by sizes."""
        return _holding(self.graph.bind(binding), self.policy)

    def with_policy(self, policy: FusionPolicy) -> HirModule:
        """The same blocks, to be lowered the other way."""
        return _holding(self.graph.rebuild(), policy)

    def lower(self) -> MirModule:
        """The module in table ops, verified."""
        from rlx.ir.lower_blocks import lower

        return MirModule(lower(self.graph, self.policy))


def wrap_mir_graph(graph: Graph, policy: FusionPolicy = FusionPolicy.DIRECT) -> HirModule:
    """A graph of ops as a module, so that blocks can be built on top of it."""
    return _holding(graph.rebuild(), policy)


def _holding(graph: Graph, policy: FusionPolicy) -> HirModule:
    module = HirModule(graph.name, policy)
    module.graph, graph.traces_lines = graph, True
    return module


def _checked(policy: Any) -> FusionPolicy:
    if not isinstance(policy, FusionPolicy):
        raise Error(f"policy is {policy!r}. Use FusionPolicy.DIRECT or FusionPolicy.FUSABLE.")
    return policy
