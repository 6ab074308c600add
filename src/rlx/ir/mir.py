"""MIR: an immutable DAG of table ops.

A node is an op, its inputs and its attributes, plus the shapes inferred from them. Nodes are
interned per graph, so equality is identity and common subexpressions never exist twice. A graph
is built once and then read; a pass makes a new one.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any

from rlx.core import attrs as attributes
from rlx.core.arguments import FUNCTION, MAPPING, NONE, check_node, instance
from rlx.core.attrs import is_text
from rlx.core.dim import Dim, DimLike
from rlx.core.errors import Error, GraphError
from rlx.core.extent import CAPACITY, of_symbol
from rlx.core.public_calls import public_class, user_frame
from rlx.core.shape import DimBinding, Shape, ShapeLike
from rlx.ir.bodies import Bodies
from rlx.ir.extents import Extents, measured_by
from rlx.ir.op_methods import OpMethods
from rlx.ir.operators import Operators
from rlx.ir.origin import LATE as LATE
from rlx.ir.origin import STEADY as STEADY
from rlx.ir.origin import Origin as Origin
from rlx.ir.size_requirements import RequiredSizes
from rlx.ir.states import States
from rlx.ir.walk import topological as topological
from rlx.ir.walk import users_of as users_of
from rlx.ops import op as table
from rlx.ops.graphs import NodeBase, provide
from rlx.ops.op import Op

NAMED_LEAVES = ("input", "param", "state")
MAX_BODY_DEPTH = 100
"""How deep graphs may be held by each other: passes enter bodies by recursion."""


@public_class
class Node(Operators, NodeBase):
    """One operation. Equal nodes of a graph are the same object."""

    __slots__ = (
        "__weakref__",
        "attr_key",
        "attrs",
        "awaits",
        "decl",
        "graph",
        "index",
        "inputs",
        "op",
        "shape",
    )
    graph: Graph
    decl: Op
    op: str
    inputs: tuple[Node, ...]
    attrs: Mapping[str, Any]
    attr_key: tuple[object, ...]
    """The attributes as interning compares them."""
    shape: Any
    """The result's Shape; a tuple of them where the op has several results."""
    index: int
    """The position in the graph's list of nodes; inputs come before their users."""
    awaits: tuple[Node, ...]
    """The nodes beside its inputs that measure sizes it uses."""

    @property
    def shapes(self) -> tuple[Shape, ...]:
        """The shapes of all results."""
        return self.shape if isinstance(self.shape, tuple) else (self.shape,)

    @property
    def has_items(self) -> bool:
        """Does the op have several results, each read through an `item` node?"""
        return isinstance(self.shape, tuple)

    @property
    def is_leaf(self) -> bool:
        """Is it an input, a param, a state or a constant?"""
        return self.op in ("input", "param", "state", "constant")

    @property
    def is_given(self) -> bool:
        """Is it given for a call, by the caller or by a session?"""
        return self.op in ("input", "state")

    @property
    def origins(self) -> tuple[Origin, ...]:
        """Where it comes from: lines, names of the model, blocks."""
        return self.graph.origins.get(self, ())

    @property
    def label(self) -> str:
        """How messages name this node: its op and where it comes from."""
        name = self.attrs.get("name")
        what = f"{self.op} {name!r}" if isinstance(name, str) else self.op
        places = [o for o in self.origins if o.kind != "phase"]
        if places:
            return f"{what} at {places[0]}"
        return what if isinstance(name, str) else f"{what} (node {self.index})"

    @property
    def is_steady(self) -> bool:
        """Does it come of work that is known to be SteadyState?"""
        return STEADY in self.origins

    @property
    def is_late(self) -> bool:
        """Does it come of the Epilogue, and of nothing else?"""
        return LATE in self.origins and STEADY not in self.origins

    def __reduce__(self) -> tuple[Any, ...]:
        """Carried with its graph; of a graph it is the same node."""
        from rlx.ir.flat import node_of

        return node_of, (self.graph, self.index)

    def __repr__(self) -> str:
        return f"<{self.op} #{self.index} {self.shape}>"


@public_class
class Graph(Bodies, States, RequiredSizes, OpMethods):
    """A MIR graph, and the builder that makes it: every op of the table is a method."""

    def __init__(self, name: str = "graph") -> None:
        self.name = _checked_name("a graph", name)
        self.origins: dict[Node, tuple[Origin, ...]] = {}
        self._nodes: list[Node] = []
        self._interned: dict[tuple[object, ...], Node] = {}
        self._names: dict[str, Node] = {}
        self._inputs: list[Node] = []
        self._params: list[Node] = []
        self._states: list[Node] = []
        self._versions: dict[Node, Node] = {}
        self._dims: dict[str, Dim] = {}
        self.extents = Extents(self._dims)
        self._outputs: tuple[Node, ...] = ()
        self._updates: tuple[Node, ...] = ()
        self._output_names: tuple[str, ...] = ()
        self._ordered: tuple[object, list[Node]] | None = None
        self._scope: tuple[Origin, ...] = ()
        self._sealed: str | None = None
        self._digest: str | None = None
        self._names_dims: bool | None = None
        self.body_depth = 0
        """How deep its bodies nest."""
        self.traces_lines = True
        self.is_traced = False
        """Is a function of the user running on its nodes? They are compared as arrays are then."""

    # -- building ------------------------------------------------------------------------------

    def input(self, name: str, shape: ShapeLike, dtype: Any = None) -> Node:
        """A value given anew on every call; of dims alone the dtype is f32."""
        return self._leaf("input", name, Shape.of(shape, dtype))

    def param(self, name: str, shape: ShapeLike, dtype: Any = None) -> Node:
        """A weight: given once, the same for every call; of dims alone the dtype is f32."""
        return self._leaf("param", name, Shape.of(shape, dtype))

    def _leaf(
        self, op: str, name: str, shape: Shape, more: Mapping[str, Any] = MappingProxyType({})
    ) -> Node:
        if isinstance(name, str) and name in self._names:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise GraphError(f"{op}{self._here()}: the name {name!r} is already taken")
        return self.node(op, (), {"name": name, "shape": shape, **more})

    def constant(self, value: Any) -> Node:
        """A value known now. A Python scalar is what it is among ops: a float is an f32."""
        from rlx.ops.operands import is_weak, scalar

        try:
            known = scalar(value) if is_weak(value) else value
        except GraphError as error:
            raise GraphError(f"constant{self._here()}: {error}") from None
        return self.node("constant", (), {"value": known})

    def node(
        self, op: str | Op, inputs: Sequence[Node], attrs: Mapping[str, Any] | None = None
    ) -> Node:
        """The node of `op` applied to `inputs` exactly as given: no casts, no constants made."""
        check_node(op, inputs, attrs)
        decl = table.lookup(op) if isinstance(op, str) else op
        try:
            return self._intern(decl, tuple(inputs), attrs or {})
        except GraphError as error:
            raise GraphError(f"{decl.name}{self._here()}: {error}") from None

    def _intern(self, decl: Op, inputs: tuple[Node, ...], attrs: Mapping[str, Any]) -> Node:
        self._check_ownership(inputs)
        shapes = decl.operand_shapes(inputs)
        canonical = decl.canonical(attrs, shapes)
        attr_key = tuple(map(attributes.key, canonical.values()))
        key = (decl.name, *map(id, inputs), *attr_key)
        found = self._interned.get(key)
        if found is None:
            results = decl.inferred(shapes, canonical, attr_key)
            found = self._add(decl, inputs, canonical, results)
            found.attr_key, self._interned[key] = attr_key, found
        self.add_origins(found, (*self._line(), *self._scope))
        return found

    def copy(self, node: Node, inputs: tuple[Node, ...]) -> Node:
        """`node`, of this or another graph, on these inputs.

        Where the inputs have the shapes of the node's own, nothing is inferred anew.
        """
        pairs = zip(inputs, node.inputs, strict=True)
        if any(a.shape is not b.shape and a.shape != b.shape for a, b in pairs):
            return self.node(node.decl, inputs, node.attrs)
        key = (node.op, *map(id, inputs), *node.attr_key)
        found = self._interned.get(key)
        if found is None:
            self._check_ownership(inputs)
            found = self._add(node.decl, inputs, node.attrs, node.shapes)
            found.attr_key, self._interned[key] = node.attr_key, found
        self.add_origins(found, (*self._line(), *self._scope))
        return found

    def _add(
        self,
        decl: Op,
        inputs: tuple[Node, ...],
        attrs: Mapping[str, Any],
        shapes: tuple[Shape, ...],
    ) -> Node:
        if self._sealed is not None:
            raise GraphError(
                f"the graph is in use as {self._sealed} and cannot grow. Build another graph"
            )
        self._check_name(decl, attrs)
        self.extents.check(decl, attrs)
        self._enter_bodies(attrs)
        node = Node()
        node.graph, node.decl, node.op = self, decl, decl.name
        node.inputs = inputs
        node.attrs = MappingProxyType(attrs) if isinstance(attrs, dict) else attrs
        node.shape = shapes if decl.gives_items(shapes) else shapes[0]
        node.index = len(self._nodes)
        node.awaits = self.extents.add(node)
        self._nodes.append(node)
        if decl.name in NAMED_LEAVES:
            self._names[attrs["name"]] = node
            kept = {"input": self._inputs, "param": self._params, "state": self._states}
            kept[decl.name].append(node)
        self._note_version(node)
        return node

    def _enter_bodies(self, attrs: Mapping[str, Any]) -> None:
        depths = [v.body_depth for v in attrs.values() if isinstance(v, Graph)]
        depth = 1 + max(depths, default=-1)
        if depth > MAX_BODY_DEPTH:
            raise GraphError(
                f"its bodies nest more than {MAX_BODY_DEPTH} deep. Flatten branches and loops"
            )
        self.body_depth = max(self.body_depth, depth)

    def _check_ownership(self, inputs: Iterable[Node], role: str = "operand") -> None:
        for i, node in enumerate(inputs):
            if not isinstance(node, Node):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise GraphError(f"{role} {i} is {node!r}, expected a node")
            if node.graph is not self:
                raise GraphError(
                    f"{role} {i} belongs to another graph, {node.graph.name!r}. Where this is the "
                    "body of a branch or loop, pass it as an argument (a capture)"
                )

    def _check_name(self, decl: Op, attrs: Mapping[str, Any]) -> None:
        if decl.name not in NAMED_LEAVES:
            return
        if attrs["name"] in self._names:
            raise GraphError(f"the name {attrs['name']!r} is already taken. Names are unique")
        for dim in attrs["shape"].dynamic_symbols:
            if self._dims.setdefault(dim.name, dim) != dim:
                raise GraphError(
                    f"dim {dim.name} was declared before with another range. Use one rlx.Dim for it"
                )
            if dim.name in self.extents:
                raise GraphError(f"dim {dim.name} is a size that a node measures. Rename one")
            if dim.name.endswith(CAPACITY):
                raise GraphError(f"dim {dim.name}: names that end so are capacities. Rename it")

    def set_outputs(self, outputs: Sequence[Node] | Mapping[str, Node]) -> None:
        """What the graph returns, in order; a mapping names the outputs. Updates of states that
        were built are the graph's."""
        self._return(outputs)
        self.find_updates()

    def _return(self, outputs: Sequence[Node] | Mapping[str, Node]) -> None:
        try:
            nodes = self._checked_outputs(outputs)
        except GraphError as error:
            raise GraphError(f"set_outputs of {self.name!r}{self._here()}: {error}") from None
        inherited = () if self._outputs else self._output_names
        names = tuple(outputs) if isinstance(outputs, Mapping) else inherited
        kept = names if len(names) == len(nodes) else _default_names(len(nodes))
        self._outputs, self._output_names = nodes, kept

    def _checked_outputs(self, outputs: Sequence[Node] | Mapping[str, Node]) -> tuple[Node, ...]:
        if self._sealed is not None:
            raise GraphError(f"the graph is in use as {self._sealed}. Build another graph")
        if isinstance(outputs, Node) or not isinstance(outputs, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise GraphError(f"expected a list of nodes or a dict by name, got {outputs!r}")
        if isinstance(outputs, Mapping):
            for name in outputs:
                _checked_name("an output", name)
        nodes = tuple(outputs.values() if isinstance(outputs, Mapping) else outputs)
        self._check_ownership(nodes, "output")
        for i, node in enumerate(nodes):
            if node.has_items:
                raise GraphError(
                    f"output {i} is {node.label}, which has several results: return its items"
                )
        return nodes

    def _seal(self, use: str = "a body") -> None:
        """Nothing can be added any more: the graph has become a value."""
        self._sealed = self._sealed or use

    # -- reading -------------------------------------------------------------------------------

    @property
    def nodes(self) -> tuple[Node, ...]:
        """Every node, inputs before users, in the order they were made."""
        return tuple(self._nodes)

    @property
    def inputs(self) -> tuple[Node, ...]:
        """The inputs, in the order of a call."""
        return tuple(self._inputs)

    @property
    def params(self) -> tuple[Node, ...]:
        """The weights."""
        return tuple(self._params)

    @property
    def outputs(self) -> tuple[Node, ...]:
        """The results."""
        return self._outputs

    @property
    def output_names(self) -> tuple[str, ...]:
        """How `run` calls the outputs: given to set_outputs, or output0, output1, …"""
        return self._output_names

    @property
    def has_output_names(self) -> bool:
        """Were outputs given names of their own?"""
        return self._output_names != _default_names(len(self._outputs))

    @property
    def leaves(self) -> tuple[Node, ...]:
        """Inputs, params and states: what keeps its place whether used or not."""
        return (*self._inputs, *self._params, *self._states)

    @property
    def dynamic_symbols(self) -> tuple[Dim, ...]:
        """The named dims of leaves, by name."""
        return tuple(dim for _, dim in sorted(self._dims.items()))

    @property
    def has_dynamic_dims(self) -> bool:
        """Has it named dims?"""
        return bool(self.dynamic_symbols)

    @property
    def names_dims(self) -> bool:
        """Does it say a named dim anywhere? A body may where none of its inputs has one."""
        if self._names_dims is not None:
            return self._names_dims
        found = self.has_dynamic_dims or any(
            attributes.is_symbolic(v) for n in self.order() for v in n.attrs.values()
        )
        if self._sealed is not None:
            self._names_dims = found
        return found

    def find(self, name: str) -> Node:
        """The input, param or state called `name`."""
        if not isinstance(name, str) or name not in self._names:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise GraphError(f"{self.name} has no input, param or state {name!r}")
        return self._names[name]

    def order(self) -> list[Node]:
        """Leaves, then all that the outputs need, inputs before users.

        The order follows from structure alone, so equal graphs give equal orders.
        """
        key = (self._outputs, self._updates, len(self.leaves))
        if self._ordered is None or self._ordered[0] != key:
            self._ordered = (key, topological(self.results, self.leaves))
        return list(self._ordered[1])

    def __len__(self) -> int:
        return len(self._nodes)

    def __iter__(self) -> Iterator[Node]:
        return iter(self._nodes)

    def digest(self) -> str:
        """A hash of all that gives the graph its meaning; names of inputs count, its own not."""
        if self._digest is not None:
            return self._digest
        h = hashlib.blake2b(digest_size=16)
        number: dict[Node, int] = {}
        for node in self.order():
            number[node] = len(number)
            h.update(attributes.record(node, [number[i] for i in node.inputs]).encode())
        outputs = [(name, number[o]) for name, o in zip(self.output_names, self.outputs)]
        updates = [number[u] for u in self.updates]
        h.update(repr((outputs, updates) if updates else outputs).encode())
        if self.required:
            h.update(attributes.canonical(tuple(r.size for r in self.required)).encode())
        if self._sealed is not None:
            self._digest = h.hexdigest()
        return h.hexdigest()

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Graph) and self.digest() == other.digest())

    __hash__ = None  # pyright: ignore[reportAssignmentType]

    def __reduce__(self) -> tuple[Any, ...]:
        """Copied and pickled as a record of its nodes, which is as flat as the graph is deep."""
        from rlx.ir.flat import flat, graph_of

        return graph_of, (flat(self),)

    def __str__(self) -> str:
        from rlx.ir.text import show

        return show(self)

    def __repr__(self) -> str:
        return f"<Graph {self.name!r}: {len(self)} nodes, {len(self.outputs)} outputs>"

    def bind(self, binding: DimBinding | Mapping[str, DimLike]) -> Graph:
        """The graph with named dims replaced by sizes; a value without any is itself."""
        (MAPPING | instance(DimBinding)).check("the binding", binding, GraphError)
        if self._sealed is not None and not self.names_dims:
            return self
        given = dict(binding.sizes if isinstance(binding, DimBinding) else binding)
        sizes = {name: size for name, size in given.items() if name not in self.extents}

        def make(new: Graph, node: Node, inputs: tuple[Node, ...]) -> Node:
            attrs = {k: attributes.bind(v, sizes) for k, v in node.attrs.items()}
            made = new.node(node.decl, inputs, attrs)
            # what is measured of smaller operands has a smaller bound, wherever it is used
            sizes.update((s.name, of_symbol(s)) for s in measured_by(made))
            return made

        new = self.rebuild(make)
        new._require_bound(sizes)
        return new

    def rebuild(
        self, make: Callable[[Graph, Node, tuple[Node, ...]], Node | None] | None = None
    ) -> Graph:
        """A new graph: every needed node mapped by `make` (None keeps it), origins carried over.

        A node with several results must be mapped to one with as many.
        """
        (FUNCTION | NONE).check("make", make, GraphError)
        new = self.successor()
        mapped: dict[Node, Node] = {}
        for node in self.order():
            inputs = tuple(mapped[i] for i in node.inputs)
            made = make(new, node, inputs) if make else None
            mapped[node] = made if made is not None else new.copy(node, inputs)
            new.add_origins(mapped[node], node.origins)
        new.set_results([mapped[o] for o in self.results], self)
        return new

    def successor(self) -> Graph:
        """An empty graph for a pass to fill: same names, no source lines of its own."""
        new = Graph(self.name)
        new.traces_lines, new._output_names = False, self._output_names
        new._required = self._required
        return new

    # -- provenance ----------------------------------------------------------------------------

    def add_origins(self, node: Node, origins: tuple[Origin, ...]) -> None:
        """Merge `origins` into the node's, keeping their order."""
        if not origins:
            return
        known = self.origins.get(node, ())
        fresh = tuple(o for o in origins if o not in known)
        if fresh:
            self.origins[node] = known + fresh

    @contextmanager
    def scope(self, *origins: Origin) -> Generator[None]:
        """Nodes made inside get these origins."""
        before, self._scope = self._scope, (*self._scope, *origins)
        try:
            yield
        finally:
            self._scope = before

    def _line(self) -> tuple[Origin, ...]:
        """The innermost source line outside rlx."""
        if not self.traces_lines:
            return ()
        frame, _ = user_frame()
        return (Origin("line", f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"),)

    def _here(self) -> str:
        origins = (*self._line(), *self._scope)
        return f" at {', '.join(map(str, origins))}" if origins else ""


provide(Graph)


def _default_names(count: int) -> tuple[str, ...]:
    return tuple(f"output{i}" for i in range(count))


def _checked_name(what: str, name: Any) -> str:
    if not isinstance(name, str) or not is_text(name):
        raise GraphError(f"{what}'s name is a string of Unicode text, got {name!r}")
    return name


@public_class
class MirModule:
    """A graph that has been verified: what `HirModule.lower` returns and the passes take."""

    def __init__(self, graph: Graph) -> None:
        if not isinstance(graph, Graph):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise Error(f"MirModule takes a rlx.Graph, got {type(graph).__name__}")
        from rlx.ir.verify import verify

        verify(graph)
        for node in graph.order():
            if node.decl.kind.value == "block":
                raise GraphError(f"{node.label} is a block, not an op. Lower its module first.")
        self._graph = graph

    @property
    def graph(self) -> Graph:
        """The graph."""
        return self._graph

    @property
    def name(self) -> str:
        """The name of the graph."""
        return self.graph.name

    def __len__(self) -> int:
        return len(self.graph)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, MirModule) and self.graph == other.graph

    __hash__ = None  # pyright: ignore[reportAssignmentType]

    def __str__(self) -> str:
        return str(self.graph)

    def __repr__(self) -> str:
        return f"<MirModule {self.name!r}: {len(self)} nodes>"
