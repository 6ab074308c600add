"""The importer: nodes of an FX graph of ATen ops, in order, become nodes of a graph."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from rlx import ops
from rlx.core.dim import Dim
from rlx.core.errors import Error, GraphError, UnsupportedError
from rlx.core.shape import Shape, dims_differ
from rlx.frontends.torch.aliasing import (
    STATISTICS,
    Storage,
    Tensor,
    arguments_of,
    base_of,
    is_view,
    written_arguments,
    written_bases,
    written_nodes,
)
from rlx.frontends.torch.arguments import bound, called
from rlx.frontends.torch.decompose import MAX_DEPTH, decomposed
from rlx.frontends.torch.dtypes import array_of, dtype_of
from rlx.frontends.torch.handlers import Handler, handler_of
from rlx.frontends.torch.missing import missing
from rlx.frontends.torch.namespaces import pytree, torch
from rlx.frontends.torch.node_call import Call, Declined, Refused, Unused, converted
from rlx.frontends.torch.provenance import origin_of
from rlx.frontends.torch.scalars import is_scalar_function, scalar_node, scalar_result
from rlx.frontends.torch.sizes import Sizes
from rlx.frontends.torch.stated_dtypes import stated_value
from rlx.frontends.torch.view_steps import view_step
from rlx.ir.mir import Graph, Node

IGNORED = frozenset({
    "_assert_async", "_assert_scalar", "_assert_tensor_metadata", "sym_constrain_range",
    "sym_constrain_range_for_size", "_linalg_check_errors", "_set_grad_enabled", "_print",
    "_enter_autocast", "_exit_autocast", "record_stream", "_functional_assert_async",
    "_functional_assert_scalar", "_functional_sym_constrain_range_for_size", "_guards_fn",
})  # fmt: skip
"""Ops that compute nothing: they check what torch has proved or the plan checks, or set modes."""
SIZES = frozenset(
    {"sym_size", "sym_stride", "sym_numel", "sym_storage_offset", "_nary_sym_max", "_nary_sym_min"}
)
"""Ops that give a size of their operand, or of sizes, which torch states."""
REINTERPRETED = frozenset({"transpose", "t", "squeeze", "unsqueeze", "swapaxes", "swapdims"})
"""Views whose in-place variants change how a tensor's memory is seen, and nothing in it."""
RANDOM_STATE = "random_state"
"""The input that a call draws its random numbers by."""


@dataclass(slots=True)
class Importer:
    """Reads one FX graph, and those inside it, into a graph."""

    graph: Graph
    sizes: Sizes
    parent: Importer | None = None
    depth: int = 0
    decomposed: dict[str, tuple[str, ...]] = field(default_factory=dict[str, Any])
    """Op → the ops that torch's decomposition made of it."""
    host_ops: list[str] = field(default_factory=list[str])
    """Ops of other libraries that the host runs."""
    _env: dict[Any, Any] = field(default_factory=dict[Any, Any])
    _num_streams: int = 0
    _random_state: Node | None = None

    def run(self, graph: Any, env: dict[Any, Any], attribute: Callable[[str], Any]) -> Any:
        """The results of an FX graph whose placeholders have values in `env`."""
        outer, self._env = self._env, env
        try:
            return self._run(graph, env, attribute)
        finally:
            self._env = outer

    def _run(self, graph: Any, env: dict[Any, Any], attribute: Callable[[str], Any]) -> Any:
        bases, live = written_bases(graph), _live(graph)
        for node in graph.nodes:
            if node not in live:
                continue
            match node.op:
                case "placeholder":
                    pass
                case "get_attr":
                    env[node] = self._attribute(attribute(node.target))
                case "output":
                    return self._looked_up(node.args[0], reads=False)
                case _:
                    with self.graph.scope(origin_of(node)):
                        env[node] = self._node(node)
            if node in bases:
                env[node] = _stored(env[node])
        raise GraphError("the FX graph has no output")

    def _attribute(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return self.graph.constant(np.array(array_of(value), order="C"))
        return value

    def _looked_up(self, value: Any, *, reads: bool = True) -> Any:
        """FX nodes replaced by what they stand for now; what is not computed is not read."""

        def found(leaf: Any) -> Any:
            if isinstance(leaf, torch.fx.Node):
                held = self._env[leaf]
                if reads and isinstance(held, Unused):
                    raise Refused(f"it reads {held.what} of {held.op}, which rlx does not compute")
                return _read(held)
            if isinstance(leaf, torch.SymInt):
                return self.sizes.of(leaf)
            return leaf

        return pytree.tree_map(found, value, is_leaf=_is_leaf)

    # -- one node -------------------------------------------------------------------------------

    def _node(self, node: Any) -> Any:
        if node.target is operator.getitem:
            return self._looked_up_whole(node.args[0])[node.args[1]]
        name = getattr(node.target, "_opname", None) or getattr(node.target, "__name__", "")
        if name in IGNORED or name.startswith("_assert"):
            return None
        if name in SIZES and isinstance(node.meta.get("val"), torch.SymInt | int):
            return self.sizes.of(node.meta["val"])
        if is_scalar_function(node.target):
            return scalar_result(self, node, self._looked_up(node.args))
        try:
            return self._op(node)
        except Error as error:
            raise missing(node, error) from None

    def _looked_up_whole(self, node: Any) -> Any:
        """A list of results, whose items may share memory with what is written to."""
        return self._env[node] if isinstance(node, torch.fx.Node) else node

    def _op(self, node: Any) -> Any:
        args = arguments_of(node)
        call = self._call(node, args)
        first = args[0] if args else None
        parent = self._env.get(first) if isinstance(first, torch.fx.Node) else None
        if isinstance(parent, Tensor) and is_view(node):
            return self._viewed(node, call, parent)
        if isinstance(parent, Tensor) and call.op.removesuffix("_") in REINTERPRETED:
            seen = replace(call, op=call.op.removesuffix("_"))
            self._env[first] = parent.viewed(view_step(self, seen, None))
            return self._env[first]
        if outs := _outs(node.target):
            return self._stored(call, outs)
        made = self._made(call)
        if _is_in_place(node):
            (_, name), *_ = written_arguments(node.target)
            self.write(call.tensors[name], call.fakes[name], made)
            return call.tensors[name]
        return made

    def _stored(self, call: Call, outs: Sequence[str]) -> Any:
        """The results of an op in the tensors that it is given for them."""
        made = self._made(call.without(outs))
        for name, value in zip(outs, made if len(outs) > 1 else [made], strict=True):
            self.write(call.tensors[name], call.fakes[name], value)
        held = [call.tensors[name] for name in outs]
        return held if len(outs) > 1 else held[0]

    def _viewed(self, node: Any, call: Call, parent: Tensor) -> Any:
        """A view on a tensor that is written to, or several."""
        if not isinstance(call.value, tuple | list):
            return parent.viewed(view_step(self, call, None))
        return [parent.viewed(view_step(self, call, i)) for i in range(len(call.value))]

    def _call(self, node: Any, args: tuple[Any, ...]) -> Call:
        fakes = pytree.tree_map(_fake, (args, node.kwargs), is_leaf=_is_leaf)
        values = self._looked_up((args, node.kwargs))
        held = pytree.tree_map(self._held, (args, node.kwargs), is_leaf=_is_leaf)
        return self.call(node.target, values, fakes, held, stated_value(node))

    def _held(self, leaf: Any) -> Any:
        return self._env[leaf] if isinstance(leaf, torch.fx.Node) else leaf

    def call(self, target: Any, values: Any, fakes: Any, held: Any, value: Any) -> Call:
        """What a handler is given for an op with these arguments, positional and by name."""
        schema = getattr(target, "_schema", None)
        name = getattr(target, "_opname", None) or getattr(target, "__name__", str(target))
        overload = getattr(target, "_overloadname", "")
        given = [bound(schema, arguments) for arguments in (values, fakes, held)]
        return Call(self, target, name, overload, given[0], given[1], value, given[2])

    def _made(self, call: Call) -> Any:
        """The results of an op: by its handler, else by torch's decomposition. Tensors without
        elements are known from their shapes."""
        if _is_empty(call):
            return pytree.tree_map(call.empty, call.value)
        handler = handler_of(_namespace(call.target), call.op)
        if handler is None:
            return self._by_decomposition(call, None)
        try:
            return self.fitted(call, self.handled(call, handler))
        except Declined:
            raise
        except (UnsupportedError, GraphError) as error:
            return self._by_decomposition(call, error)

    def handled(self, call: Call, handler: Handler) -> Any:
        """What a handler gives; operands that it was not written for are refused."""
        try:
            return called(handler, call)
        except (IndexError, KeyError, TypeError, ValueError) as error:
            what = f"{type(error).__name__}: {error}"
            raise Refused(f"its handler does not take these operands ({what})") from None

    def _by_decomposition(self, call: Call, error: Error | None) -> Any:
        if call.op in STATISTICS:
            raise error or Refused("rlx has no handler for it, and it changes what it is given")
        if self.depth >= MAX_DEPTH:
            raise error or Refused("it has no handler, and its decomposition does not end")
        found = decomposed(call, error)
        env = dict(zip(found.placeholders, found.operands(call)))
        self.depth += 1
        try:
            made = self.run(found.graph, env, found.attribute)
        finally:
            self.depth -= 1
        self.decomposed[call.op] = found.ops
        return self.fitted(call, made)

    # -- results --------------------------------------------------------------------------------

    def fitted(self, call: Call, made: Any) -> Any:
        """Results with the dtype and dims that torch states."""
        return self._fitted(made, call.value)

    def _fitted(self, made: Any, fake: Any) -> Any:
        if isinstance(fake, tuple | list) and isinstance(made, tuple | list):
            return [self._fitted(m, f) for m, f in zip(made, fake, strict=True)]
        if not isinstance(made, Node) or not isinstance(fake, torch.Tensor):
            return made
        return self._as_stated(made, fake)

    def _as_stated(self, made: Node, fake: Any) -> Node:
        for size, dim in zip(fake.shape, made.shape.dims):
            if self.sizes.is_unknown(size):
                self.sizes.bind(size, dim)
        if made.shape.rank == fake.dim():
            self.sizes.learn(made.shape.dims, self.sizes.dims(fake))
        wanted = Shape(self.sizes.dims(fake), dtype_of(fake.dtype))
        return _reshaped(converted(made, wanted.dtype), wanted)

    def write(self, tensor: Any, fake: Any, value: Node) -> None:
        """Store a value into a tensor that an op changes."""
        if not isinstance(tensor, Tensor):
            raise GraphError("an op changes a tensor that nothing says is changed")
        tensor.write(self._fitted(value, fake))

    # -- random numbers and inner graphs ----------------------------------------------------------

    def next_stream(self) -> int:
        """A stream of random numbers that no other node draws from."""
        root = self.outermost
        root._num_streams += 1
        return root._num_streams

    @property
    def outermost(self) -> Importer:
        """That of the graph which this one's is inside of, or itself."""
        return self if self.parent is None else self.parent.outermost

    def random_state(self) -> Node:
        """Where the random numbers of this call begin."""
        if self.parent is not None:
            raise Refused("random numbers in branches and loops")
        if self._random_state is None:
            self._random_state = self.graph.input(RANDOM_STATE, Shape((), "u64"))
        return self._random_state

    @property
    def draws(self) -> bool:
        """Does the graph draw random numbers?"""
        return self._random_state is not None

    def body(self, module: Any, name: str, operands: Sequence[Any]) -> Graph:
        """The graph of a branch or loop, whose inputs have the shapes of `operands`."""
        graph = Graph(name)
        graph.traces_lines = False
        inner = Importer(graph, self.sizes, self, decomposed=self.decomposed)
        placeholders = [n for n in module.graph.nodes if n.op == "placeholder"]
        env: dict[Any, Any] = {}
        for i, (place, operand) in enumerate(zip(placeholders, operands, strict=True)):
            is_node = isinstance(operand, Node)
            env[place] = graph.input(f"x{i}", operand.shape) if is_node else operand
        made = inner.run(module.graph, env, attributes_of(module))
        results = pytree.tree_leaves(made, is_leaf=lambda v: isinstance(v, Node | Dim))
        graph.set_outputs([self._result(graph, r) for r in results if r is not None])
        return graph

    def _result(self, graph: Graph, value: Any) -> Node:
        if isinstance(value, Node):
            return value
        if isinstance(value, Dim):
            return scalar_node(graph, value)
        return graph.constant(np.asarray(value))

    def inlined(self, module: Any, operands: Sequence[Any]) -> Any:
        """The results of a graph inside, written out here."""
        placeholders = [n for n in module.graph.nodes if n.op == "placeholder"]
        env = dict(zip(placeholders, operands, strict=True))
        return self.run(module.graph, env, attributes_of(module))


def attributes_of(module: Any) -> Callable[[str], Any]:
    """Attributes of a GraphModule by their dotted names."""

    def found(name: str) -> Any:
        value = module
        for part in name.split("."):
            value = getattr(value, part)
        return value

    return found


def _stored(value: Any) -> Any:
    """A result that is written to, in a storage; each of several has its own."""
    if isinstance(value, list | tuple):
        return [_stored(v) for v in value]
    return Tensor(Storage(value)) if isinstance(value, Node) else value


def _read(value: Any) -> Any:
    """What tensors hold now, in lists as well."""
    if isinstance(value, list):
        return [_read(v) for v in value]
    return value.read() if isinstance(value, Tensor) else value


def _reshaped(made: Node, wanted: Shape) -> Node:
    if made.shape.dims == wanted.dims:
        return made
    if made.shape.rank == wanted.rank and all(
        a in (b, 1) for a, b in zip(made.shape.dims, wanted.dims)
    ):
        return ops.expand(made, dims=wanted.dims)
    what = f"it gives {made.shape} where torch has {wanted}"
    raise Refused(what) from dims_differ(what, made.shape.dims, wanted.dims)


def _is_leaf(value: Any) -> bool:
    return isinstance(value, torch.fx.Node | torch.SymInt | torch.SymFloat | torch.SymBool)


def _fake(leaf: Any) -> Any:
    return leaf.meta.get("val") if isinstance(leaf, torch.fx.Node) else leaf


def _namespace(target: Any) -> str:
    return getattr(target, "namespace", "higher_order") or "higher_order"


def _is_empty(call: Call) -> bool:
    """Has no result an element? Of operands with open sizes torch says so of sizes above 1."""
    schema = getattr(call.target, "_schema", None)
    if schema is None or schema.is_mutable or not all(map(_is_static, call.fakes.values())):
        return False
    fakes = pytree.tree_leaves(call.value)
    return bool(fakes) and all(isinstance(f, torch.Tensor) and _has_zero(f) for f in fakes)


def _is_static(operand: Any) -> bool:
    leaves = pytree.tree_leaves(operand)
    sizes = [s for v in leaves for s in (v.shape if isinstance(v, torch.Tensor) else (v,))]
    return not any(isinstance(s, torch.SymInt) for s in sizes)


def _has_zero(fake: Any) -> bool:
    return all(isinstance(d, int) for d in fake.shape) and 0 in fake.shape


def _outs(target: Any) -> list[str]:
    """The arguments of a variant `out=` that are what it gives."""
    schema = getattr(target, "_schema", None)
    return [] if schema is None else [a.name for a in schema.arguments if a.is_out]


def _is_in_place(node: Any) -> bool:
    """Is it the in-place variant of an op, which gives the tensor that it changes?"""
    schema = getattr(node.target, "_schema", None)
    if schema is None or not schema.is_mutable or len(schema.returns) != 1:
        return False
    return len(list(written_arguments(node.target))) == 1


def _live(graph: Any) -> set[Any]:
    """What the results need, and what changes tensors that outlive the graph."""
    live: set[Any] = set()
    for node in reversed(graph.nodes):
        writes = bool(written_nodes(node)) if node.op == "call_function" else False
        if node.op in ("output", "placeholder") or node in live or writes:
            live.update((node, *node.all_input_nodes))
    return live


def shared_base(node: Any) -> Any:
    """The placeholder whose memory a result is in; None where it has its own."""
    base = base_of(node)
    return base if base.op == "placeholder" else None
