"""HIR: a graph of blocks, with the policy by which they are lowered.

The graph is an ordinary `Graph` whose nodes may also be rows of the block table, so interning,
provenance, shapes and equality are those of every graph.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from rlx.core.dim import Dim, DimLike
from rlx.core.errors import Error, UnknownNameError
from rlx.core.shape import DimBinding, Shape
from rlx.ir import block
from rlx.ir.block import FusionPolicy as FusionPolicy
from rlx.ir.mir import Graph, MirModule, Node, Origin
from rlx.ops.op import lookup


class HirModule:
    """A module in blocks, and the builder that makes it: every block and op is a method."""

    def __init__(self, name: str = "module", policy: FusionPolicy = FusionPolicy.DIRECT) -> None:
        self.graph = Graph(name)
        self.policy = _checked(policy)

    # -- building ------------------------------------------------------------------------------

    def input(self, name: str, shape: Shape) -> Node:
        """A value given anew on every call."""
        return self.graph.input(name, shape)

    def param(self, name: str, shape: Shape) -> Node:
        """A weight: given once, the same for every call."""
        return self.graph.param(name, shape)

    def constant(self, value: Any) -> Node:
        """A value known now."""
        return self.graph.constant(value)

    def mir(self, op: str, *inputs: Any, **attrs: Any) -> Any:
        """An op of the table, which lowering leaves as it is."""
        return lookup(op).build(self.graph, inputs, attrs)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        """The builder method of a block, or of an op: `m.linear(x, w)`, `m.softmax(x)`."""
        if name.startswith("__") or (decl := block.find(name)) is None:
            raise UnknownNameError(f"HirModule has no method, block or op {name!r}.")
        return lambda *args, **attrs: decl.build(self.graph, args, attrs)

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
        return self.graph.name

    @property
    def nodes(self) -> tuple[Node, ...]:
        return self.graph.nodes

    @property
    def inputs(self) -> tuple[Node, ...]:
        return self.graph.inputs

    @property
    def params(self) -> tuple[Node, ...]:
        return self.graph.params

    @property
    def outputs(self) -> tuple[Node, ...]:
        return self.graph.outputs

    @property
    def dynamic_symbols(self) -> tuple[Dim, ...]:
        return self.graph.dynamic_symbols

    @property
    def has_dynamic_dims(self) -> bool:
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
