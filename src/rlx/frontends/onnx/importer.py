"""The importer: nodes of a model, in topological order, become nodes of a graph."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rlx.core.dim import Dim
from rlx.core.dtype import DType
from rlx.core.errors import Error, GraphError, UnsupportedError
from rlx.core.shape import Shape
from rlx.frontends.onnx.attributes import attributes_of, first_version
from rlx.frontends.onnx.call_values import declared_input, text_array
from rlx.frontends.onnx.data_dependent_sizes import MAX_UNIFIED, unified
from rlx.frontends.onnx.handlers import handler_of
from rlx.frontends.onnx.host_steps import HostStep
from rlx.frontends.onnx.id_tensors import applied_to_codes, element_of, in_codes, meaning
from rlx.frontends.onnx.node_call import Call, NeedsShape, NeedsValue
from rlx.frontends.onnx.reader import UNCHANGED, Reader, guarded, name_of, text
from rlx.frontends.onnx.scope import Scope
from rlx.frontends.onnx.strings import Strings
from rlx.frontends.onnx.topological_sort import ordered
from rlx.frontends.onnx.values import (
    MAX_SIZES,
    Absent,
    Element,
    Form,
    Given,
    Items,
    Mapped,
    Pairs,
    Sizes,
    Value,
    Weight,
    flattened,
    state_double,
)
from rlx.ir.interpret import evaluate_node
from rlx.ir.mir import Graph, Node, Origin, topological
from rlx.ops.op import Kind

MAX_SETTING = 16
"""Elements of an input that are a setting rather than data."""
MAX_DEPTH = 64
"""Of graphs in graphs and of functions that call functions."""


class TooMany(UnsupportedError):
    """A model whose nodes stand for more than is sensible to write out."""


@dataclass(slots=True)
class Importer:
    """Reads one model into a graph."""

    reader: Reader
    static: Mapping[str, Given] = field(default_factory=dict[str, Any])
    """Inputs whose values are known, as shapes follow from them."""
    shapes: Mapping[str, Form] = field(default_factory=dict[str, Any])
    """Inputs whose shapes are known better than the model says."""
    params: dict[str, np.ndarray[Any, Any]] = field(default_factory=dict[str, Any])
    known: dict[Node, np.ndarray[Any, Any] | None] = field(default_factory=dict[Node, Any])
    outside: dict[Node, Node] = field(default_factory=dict[Node, Node])
    """Input of a graph inside → the value that it stands for."""
    inputs: tuple[Value, ...] = ()
    """What calls give, but for what is static."""
    outputs: tuple[Value, ...] = ()
    """What the model gives, in order."""
    steps: list[HostStep] = field(default_factory=list[HostStep])
    """What the host does between programs."""
    strings: Strings = field(default_factory=Strings)
    """Those of the model."""
    elements: dict[int, list[Element | None]] = field(default_factory=dict[int, Any])
    """Graph inside a node, by id → what the codes that it gives mean."""
    name: str = ""
    """What the user calls the model; its file, for what exporters call graphs says little."""
    attributes: dict[int, tuple[Any, dict[str, Any]]] = field(
        default_factory=dict[int, tuple[Any, dict[str, Any]]]
    )
    """Nodes by id, and their attributes: of one model that is read several times."""
    measures: bool = True
    """May sizes be found out while the model runs?"""
    has_measured: bool = False
    depth: int = 0
    _num_streams: int = 0
    _num_bodies: int = 0
    _num_nodes: int = 0
    _made: dict[str, Node] = field(default_factory=dict[str, Node])
    _main: Scope | None = None

    def again(self, *, measures: bool) -> Importer:
        """One that reads the same model from its beginning."""
        return Importer(
            self.reader, self.static, self.shapes, name=self.name, attributes=self.attributes,
            measures=measures,
        )  # fmt: skip

    # -- the whole model ------------------------------------------------------------------------

    def read(self) -> Graph:
        """The model's graph; its weights are in `params`."""
        proto = self.reader.model.graph
        graph = Graph(_name(self.name or proto.name) or "model")
        graph.traces_lines = False
        scope = self._main = Scope(graph, self)
        self._initialise(scope, proto)
        for info in proto.input:
            if info.name in scope.values:
                continue  # an initialiser is its default
            scope.made.add(info.name)
            scope.values[info.name] = self._input(graph, info.name, info)
            if info.name not in self.static:
                self.inputs += (scope.values[info.name],)
        self.run(scope, proto.node)
        self.outputs = tuple(scope.result(o.name) for o in proto.output)
        flat = [scope.as_node(v) for o in self.outputs for v in flattened(o)]
        is_flat = all(len(flattened(o)) == 1 for o in self.outputs)
        names = self.reader.output_names
        graph.set_outputs(dict(zip(names, flat, strict=True)) if is_flat else flat)
        return graph

    def _input(self, graph: Graph, name: str, info: Any) -> Value:
        """A tensor; of sequences and optionals what a call gave."""
        if info.name in self.static:
            return self._known(graph, self.static[info.name], f"input {name!r}")
        return declared_input(self.reader, graph, info, self.shapes)

    def _known(self, graph: Graph, given: Given, what: str) -> Value:
        """What a call gave, as a value that is known while reading."""
        match given:
            case None:
                return Absent()
            case list():
                items: list[Given] = given
                return Items(tuple(self._known(graph, g, what) for g in items))
            case Mapped(keys=keys, values=values):
                return Pairs(self._known(graph, keys, what), self._known(graph, values, what))
            case _:
                weight = Weight(what, text_array(given))
                element, codes = weight.element, in_codes(weight, self.strings)
                assert isinstance(codes, Weight)
                return meaning(graph.constant(codes.array), element)

    @property
    def is_exact(self) -> bool:
        """Are the sizes of all inputs known?"""
        return self._main is not None and all(i.shape.is_static for i in self._main.graph.inputs)

    def _initialise(self, scope: Scope, proto: Any) -> None:
        for tensor in (*proto.initializer, *proto.sparse_initializer):
            name, array = self.reader.initialiser(tensor)
            if name in scope.made:
                raise GraphError(f"two initialisers are called {name[:80]!r}")
            scope.made.add(name)
            scope.values[name] = Weight(name, array)

    def param(self, weight: Weight) -> Node:
        """A weight as a param; its name is its own where graphs inside use one name twice."""
        name, number = weight.name, 2
        while self._is_taken(name) and not _is_same(self.params.get(name), weight.array):
            name, number = f"{weight.name}.{number}", number + 1
        if name not in self._made:
            shape = Shape(weight.array.shape, weight.dtype)
            self._made[name] = self._graph.param(name, shape)
            self.params[name] = weight.array
        return self._made[name]

    def _is_taken(self, name: str) -> bool:
        return name in self._made or any(name == i.attrs["name"] for i in self._graph.inputs)

    # -- nodes ----------------------------------------------------------------------------------

    def run(self, scope: Scope, nodes: Iterable[Any]) -> None:
        """Read nodes in topological order; what each gives gets its names."""
        for proto in ordered(list(nodes), scope.graph.name):
            results = self.node(scope, proto)
            if len(results) < len([o for o in proto.output if o]) and any(
                proto.output[len(results) :]
            ):
                raise UnsupportedError(
                    f"ONNX {proto.op_type} {proto.name!r}: result {len(results)} is not made"
                )
            for name, value in zip(proto.output, results):
                if name:
                    if name in scope.made:
                        raise GraphError(f"two values are called {name[:80]!r}")
                    scope.made.add(name)
                    scope.values[name] = value
                    state_double(value, name)

    def node(self, scope: Scope, proto: Any) -> tuple[Value, ...]:
        for name in (proto.op_type, proto.domain, proto.name, *proto.input, *proto.output):
            text(name)
        domain = "" if proto.domain == "ai.onnx" else proto.domain
        function = self.reader.functions.get((domain, proto.op_type, proto.overload))
        version = self._version(scope, domain)
        call = Call(
            self,
            scope,
            name_of(proto),
            proto.op_type,
            domain,
            version,
            self._attributes(proto, domain, version),
            tuple(scope.find(name) if name else None for name in proto.input),
            tuple(proto.output),
        )
        self._count_node(call)
        if domain == "" and version < UNCHANGED and first_version(proto.op_type) > version:
            raise UnsupportedError(
                f"{call.label}: opset {version} has another operator of this name. "
                "onnx.version_converter changes it."
            )
        handler = handler_of(domain, proto.op_type, call.version)
        with scope.graph.scope(Origin("onnx", call.name)):
            if handler is None and function is not None:
                return self._function(call, function)
            if handler is None:
                where = f" of domain {domain[:80]!r}" if domain else f" of opset {call.version}"
                raise UnsupportedError(f"{call.label}: rlx does not know this operator{where}")
            return self._results(call, handler)

    def _attributes(self, proto: Any, domain: str, version: int) -> dict[str, Any]:
        """Those of a node, which an import before this one may have read."""
        if id(proto) not in self.attributes:
            found = attributes_of(proto, self.reader, domain, version)
            self.attributes[id(proto)] = proto, found
        return dict(self.attributes[id(proto)][1])

    def _results(self, call: Call, handler: Any) -> tuple[Value, ...]:
        def run(given: Call) -> tuple[Value, ...]:
            made = handler(given)
            return made if isinstance(made, tuple) else (made,)

        try:
            with guarded(call.label):
                return self._unified(call, handler, run)
        except Error as error:
            if isinstance(error, NeedsValue | NeedsShape):
                raise
            if type(error) is UnsupportedError and call.has_named_sizes:
                raise NeedsShape(str(error)) from None
            if call.label in str(error):
                raise
            kind = GraphError if isinstance(error, GraphError) else type(error)
            raise kind(f"{call.label}: {error}") from None

    def _unified(self, call: Call, handler: Any, run: Any) -> tuple[Value, ...]:
        """The results of a node; sizes that must be equal for it to have a meaning are taken to
        be, and compared when it runs, where one of them is measured."""
        for _ in range(MAX_UNIFIED):
            try:
                return applied_to_codes(call, handler, run)
            except GraphError as error:
                other = unified(call, error)
                if other is None:
                    raise
                call = other
        return applied_to_codes(call, handler, run)

    def may_measure(self, value: Node) -> bool:
        """Is a size that this value says found out while the model runs? A few integers that a
        call gives are better known before: then the model is compiled for them."""
        if not self.measures:
            return False
        leaves = [n for n in self._leaves(value) if n.op in ("input", "param")]
        if not leaves or all(map(self._is_setting, leaves)):
            return False
        self.has_measured = True
        return True

    def _is_setting(self, leaf: Node) -> bool:
        """Is it an input of the model, of a few integers?"""
        is_small = _count(leaf.shape) <= MAX_SETTING and leaf.shape.dtype.is_integer
        return leaf.op == "input" and leaf.graph is self._graph and is_small

    def _count_node(self, call: Call) -> None:
        """Few functions that call each other, or loops that are written out, can stand for more
        nodes than there is memory."""
        self._num_nodes += call.scope.parent is not None
        if self._num_nodes > self.reader.max_nodes:
            raise TooMany(f"{call.label}: the model's functions and loops come to too many nodes")

    def _version(self, scope: Scope, domain: str) -> int:
        versions = scope.functions if scope.functions is not None else self.reader.opsets
        return versions.get(domain, 1)

    def next_prefix(self) -> str:
        """Of the names of sizes that a graph inside finds out: it is given sizes from around it,
        and gives its own, so that no two graphs may use one name."""
        self._num_bodies += 1
        return f"b{self._num_bodies}."

    def next_stream(self) -> int:
        """A stream of random numbers that no other node draws from; 0 is that of seeds."""
        self._num_streams += 1
        return self._num_streams

    def is_outermost(self, graph: Graph) -> bool:
        """Is it the model's own graph, not that of a branch or loop?"""
        return self._main is not None and graph is self._main.graph

    # -- functions and graphs inside ------------------------------------------------------------

    def _function(self, call: Call, function: Any) -> tuple[Value, ...]:
        """A function of the model's own, written out where it is called."""
        opsets = self.reader.opsets_of(function)
        inner = Scope(call.graph, self, call.scope, functions=opsets, is_closed=True)
        for name, value in zip(function.input, call.inputs):
            if value is not None:
                inner.values[name] = value
        missing = list(function.input)[len(call.inputs) :]
        given = self.reader.with_attributes(function, call.attrs)
        with self._deeper(call):
            self.run(inner, [_without(proto, missing) for proto in given])
        return tuple(inner.find(name) for name in function.output)

    def body(
        self, call: Call, proto: Any, inputs: Sequence[Value | Shape], step: str = ""
    ) -> tuple[Scope, list[Value]]:
        """A graph inside a node, read into a graph of its own: its scope and its results.

        An input given as a shape becomes an input of the new graph; one given as a value is known
        in it. `step` is the input that is the number of a loop's step; where the body has none of
        that name, it is a last input of the new graph.
        """
        graph = Graph(_name(proto.name) or call.op)
        graph.traces_lines = False
        graph.extents.prefix = self.next_prefix()
        scope = Scope(graph, self, call.scope, functions=call.scope.functions, proto=proto)
        elements = [*map(element_of, call.inputs), *(None for _ in inputs[call.num_inputs :])]
        for info, given, element in zip(proto.input, inputs, elements):
            scope.values[info.name] = (
                given
                if not isinstance(given, Shape)
                else meaning(graph.input(info.name, given), element)
            )
        if step:
            is_own = step in scope.values
            scope.step = scope.values[step] if is_own else graph.input(step, Shape((), DType.I64))
        with self._deeper(call):
            self._initialise(scope, proto)
            self.run(scope, proto.node)
        return scope, self._given_by(scope, proto)

    def inlined(self, call: Call, proto: Any, inputs: Sequence[Value]) -> list[Value]:
        """The results of a graph inside a node, read into the graph of the node itself."""
        scope = Scope(call.graph, self, call.scope, functions=call.scope.functions, proto=proto)
        for info, given in zip(proto.input, inputs, strict=True):
            scope.values[info.name] = given
        with self._deeper(call):
            self._initialise(scope, proto)
            self.run(scope, proto.node)
        return self._given_by(scope, proto)

    def _given_by(self, scope: Scope, proto: Any) -> list[Value]:
        """The results of a graph inside a node."""
        results = [scope.result(o.name) for o in proto.output]
        self.elements[id(proto)] = [element_of(v) for v in results]
        return results

    @contextmanager
    def _deeper(self, call: Call) -> Generator[None]:
        if self.depth == MAX_DEPTH:
            raise GraphError(f"{call.label}: graphs or functions are nested too deep")
        self.depth += 1
        try:
            yield
        finally:
            self.depth -= 1

    # -- what is known --------------------------------------------------------------------------

    def as_sizes(self, value: Value) -> Sizes | None:
        """The value as dims, where it is a small integer tensor that is known."""
        if isinstance(value, Sizes):
            return value
        array = self.as_array(value)
        if array is None or array.size > MAX_SIZES or array.dtype.kind not in "iub":
            return None
        return Sizes.of(array)

    def as_array(self, value: Value) -> np.ndarray[Any, Any] | None:
        """The numbers of a value that depends on no input."""
        match value:
            case Sizes():
                known = value.is_known
                return value.array.astype(value.dtype.numpy) if known else None
            case Weight():
                return value.array
            case Node():
                return self._evaluated(value)
            case _:
                return None

    def _evaluated(self, node: Node) -> np.ndarray[Any, Any] | None:
        """Of a node that follows from constants alone, and is small enough to be a shape."""
        if node in self.known:
            return self.known[node]
        if node.has_items or any(isinstance(d, Dim) for d in node.shape.dims):
            return None
        stack = [node]
        while stack:
            missing = [i for i in stack[-1].inputs if i not in self.known]
            if not missing:
                each = stack.pop()
                self.known[each] = self._one(each)
            stack += missing
        return self.known[node]

    def _one(self, node: Node) -> Any:
        if node.op == "constant":
            return node.attrs["value"].array
        operands = [self.known[i] for i in node.inputs]
        is_small = all(_count(s) <= MAX_SIZES for s in node.shapes)
        is_open = node.is_leaf or node.op == "extent" or node.decl.kind is Kind.CONTROL
        if is_open or not is_small or any(o is None for o in operands):
            return None
        if node.op == "item":
            return operands[0][node.attrs["index"]]  # pyright: ignore[reportOptionalSubscript]
        return evaluate_node(node, operands, {})

    def is_given(self, value: Value) -> bool:
        """Is it an input of the model, whose value a call brings along?"""
        assert self._main is not None
        return any(self._main.values.get(name) is value for name in self.static)

    def unknown(self, value: Value, what: str) -> UnsupportedError:
        """The error of a value that must be known: it says which inputs a call must fix."""
        leaves = self._leaves(value)
        inputs = [n.attrs["name"] for n in leaves if n.op == "input"]
        if any(n.op == "param" for n in leaves) or any(self._is_inside(n) for n in leaves):
            return UnsupportedError(what)
        if inputs:
            return NeedsValue(what, self._named(inputs))
        return NeedsShape(what) if leaves else UnsupportedError(what)

    def _leaves(self, value: Value) -> list[Node]:
        """Params, inputs of the model and sizes that a value depends on."""
        if isinstance(value, Sizes):
            return [] if value.is_known else [value.node(self._graph)]
        if not isinstance(value, Node):
            return []
        found, todo = dict[Node, None](), [value]
        while todo:
            for node in topological([todo.pop()]):
                if node in self.outside:
                    todo.append(self.outside[node])
                elif node.op in ("input", "param", "extent"):
                    found[node] = None
        return list(found)

    @property
    def _graph(self) -> Graph:
        assert self._main is not None
        return self._main.graph

    def _is_inside(self, node: Node) -> bool:
        """Is it an input that only a graph inside has, as a loop's?"""
        return node.op == "input" and node.graph is not self._graph

    def _named(self, inputs: Sequence[str]) -> list[str]:
        """The inputs of the model that these are, or are a part of."""
        names = [i.name for i in self.reader.model.graph.input]
        return [n for n in names if any(i == n or i.startswith(f"{n}.") for i in inputs)]


def _is_same(one: Any, other: np.ndarray[Any, Any]) -> bool:
    if one is None or one.dtype != other.dtype or one.shape != other.shape:
        return False
    return one is other or one.tobytes() == other.tobytes()


def _count(shape: Shape) -> int:
    """How many elements; more than any limit where that is not known."""
    return int(shape.num_elements) if shape.is_static else MAX_SIZES + 1  # pyright: ignore[reportArgumentType]


def _name(text: str) -> str:
    return text[:80]


def _without(proto: Any, missing: Sequence[str]) -> Any:
    """A node of a function with operands that its caller left out left out, too."""
    if not any(i in missing for i in proto.input):
        return proto
    copy = type(proto)()
    copy.CopyFrom(proto)
    for i, name in enumerate(copy.input):
        if name in missing:
            copy.input[i] = ""
    return copy
