"""The op table. An op is declared once, on its family's page in `ops/`; the rest is derived.

    @op("f[*s] -> f[*s]", kind=Kind.ELEMENTWISE)
    def sigmoid(x):
        '''1 / (1 + exp(-x)).'''
        return ...                       # the body is the meaning, in NumPy

Calling an op does what its arguments ask: nodes build the graph, arrays run the reference,
shapes give the shapes of the results, pattern variables build a pattern.
"""

from __future__ import annotations

import enum
import importlib
import inspect
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rlx.core import attrs as attributes
from rlx.core import sig
from rlx.core.dim import Dim, DimLike, dim_max, dim_min
from rlx.core.dtype import DType
from rlx.core.errors import Error, GraphError, OpenSizesError
from rlx.core.shape import Shape
from rlx.ops.call_signature import OwnSignature
from rlx.ops.graphs import NodeBase
from rlx.ops.operands import (
    Array,
    computable,
    dtypes_of,
    fitted,
    promote_scalars,
    python_names,
    within_memory,
)
from rlx.ops.pages import all_pages
from rlx.ops.pattern import Pattern as Pattern
from rlx.ops.pattern import Var as Var

if TYPE_CHECKING:
    from rlx.core.layout import Layout
    from rlx.ir.mir import Graph, Node
    from rlx.ops.cost import Cost, Work


class Kind(enum.Enum):
    """What sort of work an op does: it says how it may be fused, planned and counted."""

    LEAF = "leaf"
    ELEMENTWISE = "elementwise"  # one value in, one out, at each index
    MOVEMENT = "movement"  # the same values at other indices
    REDUCTION = "reduction"  # folds axes away
    ROW = "row"  # reads a row more than once and writes a row: softmax, norms
    CONTRACTION = "contraction"  # sums of products over a shared axis
    CONVOLUTION = "convolution"
    ATTENTION = "attention"
    SPECIAL = "special"  # a dedicated kernel: FFT, sort, scatter, scan
    CONTROL = "control"  # holds graphs that run or not, once or often
    REGION = "region"  # holds a graph that runs as one kernel
    BLOCK = "block"  # a row of the block table: HIR only, gone after lowering


MAX_KNOWN = 1024
"""Results of inference that an op remembers."""
Lowering = Callable[..., Any]
Cases = Callable[..., Any]


class Op:
    """One row of the table."""

    def __init__(
        self,
        reference: Callable[..., Any],
        signature: str,
        *,
        kind: Kind,
        flops: str | Callable[..., DimLike] | None = None,
        cost: Cost | None = None,
        shape: Callable[..., Any] | None = None,
        aliases: tuple[str, ...] = (),
        is_commutative: bool = False,
        is_epilogue: bool = False,
        is_exact: bool = False,
        syncs_host: bool = False,
        has_fft: bool = False,
        is_fused: bool = False,
        is_update: bool = False,
        reduces_trailing: bool = False,
        why_no_lowering: str = "",
        why_no_cases: str = "",
        why_static: str = "",
        jumps: bool = False,
        draw: str | Mapping[str, str] = "any",
    ) -> None:
        self.name = reference.__name__.removesuffix("_")
        self.doc = self.__doc__ = inspect.getdoc(reference) or ""
        self.__name__ = self.__qualname__ = self.name
        self.page = reference.__module__.removeprefix("rlx.ops.")
        self.reference = reference
        self.signature = sig.parse(signature)
        self.kind, self.aliases, self.is_commutative = kind, aliases, is_commutative
        self.is_epilogue, self.syncs_host, self.has_fft = is_epilogue, syncs_host, has_fft
        self.is_fused = is_fused
        """Is it several ops in one, which a target claims by name?"""
        self.is_update = is_update
        """Does it give its first operand with other elements, in place where that is a state?"""
        self.reduces_trailing = reduces_trailing
        """Are its rows all axes from `axis` on, and not that one alone?"""
        self.is_exact = is_exact or kind is Kind.MOVEMENT
        self.why_no_lowering, self.why_no_cases = why_no_lowering, why_no_cases
        self.why_static, self._jumps = why_static, jumps
        self.draw = draw
        self._shape, self._flops, self.cost = shape, flops, cost
        self._attrs: dict[str, tuple[attributes.Convert, Any]] | None = None
        self._known: dict[object, tuple[Shape, ...]] = {}
        self.known_work: dict[object, Work] = {}
        self.lower: Lowering | None = None
        self.view_rule: Callable[..., Layout | None] | None = None
        self.normalise: Callable[..., dict[str, Any]] | None = None
        self.cases: Cases | None = None

    __signature__ = OwnSignature()

    # -- what the page declares beside the meaning ------------------------------------------------

    def lowering(self, function: Lowering) -> Lowering:
        """Declare the op in terms of simpler ops: `f(*nodes, **attrs) -> node or nodes`."""
        self.lower = function
        return function

    def view(self, function: Callable[..., Layout | None]) -> Callable[..., Layout | None]:
        """Declare where the values stay in place: `f(layout, **attrs) -> layout or None`."""
        self.view_rule = function
        return function

    def normal(self, function: Callable[..., dict[str, Any]]) -> Callable[..., dict[str, Any]]:
        """Declare the canonical form of attributes that depends on shapes:
        `f(*shapes, **attrs) -> attributes that change`. Applied twice it changes nothing."""
        self.normalise = function
        return function

    def sample(self, function: Cases) -> Cases:
        """Declare how to draw operands where the signature alone does not say."""
        self.cases = function
        return function

    # -- attributes, shapes, cost -----------------------------------------------------------------

    @property
    def has_items(self) -> bool:
        """Several results, or a number of them that depends on attributes."""
        return len(self.signature.results) != 1

    @property
    def measures(self) -> bool:
        """Is a size of the results found out from data? The attribute `extent` names it. Branches
        and loops may, where the attribute has a name: `extent.0`, `extent.1` … are their sizes."""
        return "extent" in self.attr_specs and self.kind is not Kind.CONTROL

    @property
    def is_item(self) -> bool:
        """Does it read one result of a node of several?"""
        return self.name == "item"

    def gives_items(self, results: Sequence[Shape]) -> bool:
        """Is a node with these results read through items? A region of one result is not."""
        return self.has_items or len(results) != 1

    @property
    def attr_specs(self) -> dict[str, tuple[attributes.Convert, Any]]:
        """Name → (converter, default); `inspect.Parameter.empty` where there is no default."""
        if self._attrs is None:
            hints = attributes.hints_of(self.reference)
            parameters = inspect.signature(self.reference).parameters.values()
            self._attrs = {
                p.name.removesuffix("_"): (attributes.converter(hints[p.name]), p.default)
                for p in parameters
                if p.kind is p.KEYWORD_ONLY
            }
        return self._attrs

    def canonical(self, attrs: Mapping[str, Any], shapes: Sequence[Shape]) -> dict[str, Any]:
        """All attributes, in declared order, checked and in canonical form."""
        if not attrs and not self.attr_specs:
            return {}
        given = {self._canonical_name(k): v for k, v in attrs.items()}
        unknown = sorted(given.keys() - self.attr_specs.keys())
        if unknown:
            known = ", ".join(self.attr_specs) or "none"
            raise GraphError(f"has no attribute {unknown[0]!r}. It has: {known}")
        if not shapes:
            self.signature.check_arity(0)
        rank = shapes[0].rank if shapes else 0
        canonical = {k: self._convert(k, given, rank) for k in self.attr_specs}
        if self.normalise is None:
            return canonical
        self.signature.check_arity(len(shapes))
        return canonical | self.normalise(*shapes, **python_names(canonical))

    def _canonical_name(self, name: str) -> str:
        """The attribute's own name: no underscore, and `axis`, the Array API's, is `axes`."""
        bare = name.removesuffix("_")
        is_axes = bare == "axis" and "axis" not in self.attr_specs and "axes" in self.attr_specs
        return "axes" if is_axes else bare

    def _convert(self, name: str, given: Mapping[str, Any], rank: int) -> Any:
        convert, default = self.attr_specs[name]
        value = given.get(name, default)
        if value is inspect.Parameter.empty:
            raise GraphError(f"needs attribute {name!r}")
        try:
            return convert(value, rank)
        except GraphError as error:
            raise GraphError(f"attribute {name}: {error}") from None

    def operand_shapes(self, inputs: Sequence[Node]) -> Sequence[Shape]:
        """The shapes of operands. Only `item` reads a node of several results."""
        if self.is_item:
            if len(inputs) != 1 or not inputs[0].has_items:
                raise GraphError("takes one node that has several results")
            return inputs[0].shapes
        for i, node in enumerate(inputs):
            if node.has_items:
                raise GraphError(
                    f"operand {i} is {node.label}, which has several results: take one with item"
                )
        return [node.shape for node in inputs]

    def infer(self, shapes: Sequence[Shape], attrs: Mapping[str, Any]) -> tuple[Shape, ...]:
        """The shapes of the results, or a GraphError that says what does not fit."""
        if self.measures and not attrs["extent"]:
            raise GraphError("needs extent, a name for the size that it measures")
        if self._shape is None:
            return self.signature.infer(shapes, attrs)
        if not self.is_item:  # it takes results of any shapes, of which there may be thousands
            self.signature.unify(shapes, attrs)
        given = self._shape(*shapes, **python_names(attrs))
        return given if isinstance(given, tuple) else (given,)

    def inferred(
        self, shapes: Sequence[Shape], attrs: Mapping[str, Any], attr_key: tuple[object, ...]
    ) -> tuple[Shape, ...]:
        """What `infer` gives, remembered: models repeat their layers, and passes their graphs.
        `attr_key` stands for the attributes; constants are not kept alive."""
        if self.kind is Kind.LEAF or self.is_item:
            return self.infer(shapes, attrs)
        key = (tuple(shapes), attr_key)
        found = self._known.get(key)
        if found is None:
            found = self.infer(shapes, attrs)
            if len(self._known) >= MAX_KNOWN:
                self._known.clear()
            if not any(isinstance(k, attributes.Data) for k in attr_key):
                self._known[key] = found
        return found

    def flops(
        self, shapes: Sequence[Shape], results: Sequence[Shape], attrs: Mapping[str, Any]
    ) -> DimLike:
        """Arithmetic operations of one application."""
        if self._flops is None:
            free = self.kind in (Kind.LEAF, Kind.MOVEMENT)
            return 0 if free else results[0].num_elements
        if callable(self._flops):
            return self._flops(shapes, results, attrs)
        env = self.signature.unify(shapes, attrs)
        packs = {k: Shape(v, DType.BOOL).num_elements for k, v in env.packs.items()}
        sizes = {"out": results[0].num_elements} | {
            f"size{i}": s.num_elements for i, s in enumerate(shapes)
        }
        scope = {**packs, **env.dims, **attrs, **sizes}
        return eval(self._flops, {"__builtins__": {}, **_MATH}, scope)

    def jumps(self, shapes: Sequence[Shape], results: Sequence[Shape]) -> bool:
        """Can a rounding of an operand change a result by more than a rounding?

        So it is wherever an inexact number decides a whole number or a truth value.
        """
        inexact = any(s.dtype.is_float or s.dtype.is_complex for s in shapes)
        decides = any(r.dtype.is_integer or r.dtype is DType.BOOL for r in results)
        return inexact and (decides or self._jumps)

    def lowered(
        self, operands: Sequence[Any], attrs: Mapping[str, Any], graph: Graph | None = None
    ) -> tuple[Any, ...]:
        """The results decomposed into simpler ops, on nodes or arrays.

        Half floats are computed in f32 and rounded once, as the reference does. An op that has no
        operands is built in `graph`, which its lowering takes in their place.
        """
        if self.lower is None:
            raise Error(f"{self.name} has no lowering: {self.why_no_lowering}")
        halves = [d for d in (DType.of(v.dtype) for v in operands) if d.compute is not d]
        keep = self.is_exact or not halves
        cast = lookup("cast")
        given = (
            operands
            if keep
            else [
                cast(v, to=DType.of(v.dtype).compute) if DType.of(v.dtype) in halves else v
                for v in operands
            ]
        )
        first = given if self.signature.operands else [graph]
        try:
            made = self.lower(*first, **python_names(attrs))
        except GraphError as error:  # the node is valid: it holds for some sizes, not shown for all
            open_ = sorted({d.name for v in operands for d in _dims_of(v)})
            if not open_:
                raise
            raise OpenSizesError(
                f"its lowering does not hold for every size of {', '.join(open_)}: {error}"
            ) from error
        results = made if isinstance(made, tuple) else (made,)
        if keep:
            return results
        shapes = [
            v.shape if isinstance(v.shape, Shape) else Shape(v.shape, DType.of(v.dtype))
            for v in operands
        ]
        wanted = self.infer(shapes, attrs)
        return tuple(
            r if DType.of(r.dtype) is w.dtype else cast(r, to=w.dtype)
            for r, w in zip(results, wanted, strict=True)
        )

    # -- the meanings of a call -------------------------------------------------------------------

    def __call__(self, *args: Any, **attrs: Any) -> Any:
        operands, attrs = self._parted(args, attrs)
        flat = self._flattened(operands)
        if any(isinstance(a, Var | Pattern) for a in flat):
            return Pattern(self, flat, attrs)
        for a in flat:
            if isinstance(a, NodeBase):
                return self.build(a.graph, flat, attrs)
        if any(isinstance(a, Shape) for a in flat):
            return self.shaped(flat, attrs)
        return self.run(self._arrays(flat), attrs)

    def build(self, graph: Graph, args: Sequence[Any], attrs: Mapping[str, Any]) -> Any:
        """Apply to nodes, arrays and scalars, with the casts and constants that takes."""
        operands, attrs = self._parted(args, attrs)
        return self._built(graph, self._operands(graph, self._flattened(operands)), attrs)

    def _built(self, graph: Graph, operands: Sequence[Node], attrs: Mapping[str, Any]) -> Any:
        """The node, or the items of its results."""
        node = graph.node(self, operands, graph.extents.named(self, operands, attrs))
        if not node.has_items:
            return node
        return tuple(graph.node("item", (node,), {"index": i}) for i in range(len(node.shape)))

    def shaped(self, args: Sequence[Any], attrs: Mapping[str, Any]) -> Any:
        """The shapes of the results where no more than shapes is known: no casts."""
        shapes = [
            a if isinstance(a, Shape) else Shape(np.shape(a), DType.of(a.dtype))
            for a in promote_scalars(self.signature, args)
        ]
        try:
            results = self.infer(shapes, self.canonical(attrs, shapes))
        except GraphError as error:
            raise GraphError(f"its {self.name}: {error}") from None
        return results if self.gives_items(results) else results[0]

    def run(self, arrays: Sequence[Array], attrs: Mapping[str, Any]) -> Any:
        """The reference: half floats compute in f32 and round once; shapes are checked."""
        shapes = [Shape(a.shape, DType.of(a.dtype)) for a in arrays]
        try:
            canonical = self.canonical(attrs, shapes)
            if self.measures:
                canonical["extent"] = canonical["extent"] or self.name
            results = self.infer(shapes, canonical)
        except GraphError as error:
            raise GraphError(f"{self.name}: {error}") from None
        return self.evaluate(arrays, canonical, results)

    def evaluate(
        self, arrays: Sequence[Array], attrs: Mapping[str, Any], results: Sequence[Shape]
    ) -> Any:
        """The reference on checked operands, with results of exactly the inferred shapes."""
        with np.errstate(all="ignore"), within_memory(self.name, results):
            given = arrays if self.is_exact else [computable(a) for a in arrays]
            made = self.reference(*given, **python_names(attrs))
            if not self.gives_items(results):
                return fitted(self.name, made, results[0])
            sizes: dict[str, int] = {}
            return tuple(fitted(self.name, m, r, sizes) for m, r in zip(made, results, strict=True))

    def _parted(
        self, args: Sequence[Any], attrs: Mapping[str, Any]
    ) -> tuple[Sequence[Any], dict[str, Any]]:
        """Operands and attributes: `reshape(x, (2, 3))` is `reshape(x, dims=(2, 3))`, and so is
        `reshape(x, 2, 3)`. What comes after the last operand is attributes in order, where none of
        it can be an operand."""
        is_run = self.signature.is_variadic and bool(args) and isinstance(args[0], list | tuple)
        most = 1 if is_run else len(self.signature.operands)
        extra = args[most:]
        named = [n for n in self.attr_specs if n != "extent"]
        if extra and all(isinstance(e, int | Dim) for e in extra) and self._spread(named):
            extra = (tuple(extra),)
        is_open = self.signature.is_variadic and not is_run
        if not extra or is_open or len(extra) > len(named) or any(map(_is_operand, extra)):
            return args, dict(attrs)
        given = dict(zip(named, extra))
        twice = next((n for n in given if n in attrs), None)
        if twice is not None:
            raise GraphError(f"{self.name}: {twice} is given by position and by name. Give it once")
        return args[:most], {**given, **attrs}

    def _spread(self, names: Sequence[str]) -> bool:
        return attributes.only_sequence(attributes.hints_of(self.reference), names) is not None

    def _flattened(self, args: Sequence[Any]) -> tuple[Any, ...]:
        """concat([a, b]) is concat(a, b); optional operands at the end may be None."""
        flat: list[Any] = []
        for a in args:
            is_run = isinstance(a, list | tuple) and (
                any(hasattr(v, "shape") or isinstance(v, Var | Pattern | Shape) for v in a)  # pyright: ignore[reportUnknownVariableType]
                or (self.signature.is_variadic and len(a) == 0)  # pyright: ignore[reportUnknownArgumentType]
            )
            flat += a if is_run else [a]
        while len(flat) > self.signature.min_arity and flat[-1] is None:
            flat.pop()
        return tuple(flat)

    def _arrays(self, args: Sequence[Any]) -> list[Array]:
        """Arrays of equal dtypes where the signature asks for equal dtypes."""
        try:
            arrays = [attributes.array_of(a) for a in promote_scalars(self.signature, args)]
            wanted = dtypes_of(self.signature, [Shape(a.shape, DType.of(a.dtype)) for a in arrays])
        except GraphError as error:
            raise GraphError(f"{self.name}: {error}") from None
        return [
            a if d is None or a.dtype == d.numpy else lookup("cast").run([a], {"to": d})
            for a, d in zip(arrays, wanted)
        ]

    def _operands(self, graph: Graph, args: Sequence[Any]) -> list[Node]:
        """Nodes of equal dtypes where the signature asks for equal dtypes."""
        extent = lookup("extent")
        try:
            nodes: list[Any] = [
                a if isinstance(a, NodeBase) else graph.constant(a)
                for a in promote_scalars(
                    self.signature,
                    args,
                    lambda size, dtype: extent.build(graph, (), {"dim": size, "dtype": dtype}),
                )
            ]
            wanted = dtypes_of(
                self.signature, [n.shape if not n.has_items else None for n in nodes]
            )
        except GraphError as error:
            raise GraphError(f"{self.name}{graph._here()}: {error}") from None  # pyright: ignore[reportPrivateUsage]
        return [
            n if d is None or n.shape.dtype is d else graph.node("cast", (n,), {"to": d})
            for n, d in zip(nodes, wanted)
        ]

    def __repr__(self) -> str:
        return f"<op {self.name}: {self.signature.text}>"


_MATH = {"max": dim_max, "min": dim_min}


def _dims_of(value: Any) -> tuple[Dim, ...]:
    return value.shape.dynamic_symbols if isinstance(value.shape, Shape) else ()


def _is_operand(value: Any) -> bool:
    return hasattr(value, "dtype") or isinstance(value, Var | Pattern | Shape)


# -- the table ------------------------------------------------------------------------------------

_TABLE: dict[str, Op] = {}
_ALIASES: dict[str, str] = {}
_LOADED: list[str] = []
_LOADING = threading.RLock()


def op(signature: str, **facts: Any) -> Callable[[Callable[..., Any]], Op]:
    """Declare an op: the decorated function is its meaning in NumPy."""

    def declare(reference: Callable[..., Any]) -> Op:
        return register(Op(reference, signature, **facts))

    return declare


def register(new: Op) -> Op:
    """Add a row. A name is declared once."""
    for name in (new.name, *new.aliases):
        if name in _TABLE or name in _ALIASES:
            raise Error(f"op {name} is declared twice")
    _TABLE[new.name] = new
    _ALIASES.update(dict.fromkeys(new.aliases, new.name))
    return new


def load() -> None:
    """Import every page, once. Where a page and an op share a name, rlx.ops has the op."""
    if "all" in _LOADED:
        return
    with _LOADING:
        if _LOADED:
            return
        _LOADED.append("some")
        pages = importlib.import_module("rlx.ops")
        try:
            for page in all_pages():
                importlib.import_module(f"rlx.ops.{page}")
                if page in _TABLE:
                    setattr(pages, page, _TABLE[page])
        except BaseException:
            _LOADED.clear()
            raise
        _LOADED.append("all")


def table() -> dict[str, Op]:
    """Every op by name, in the order of the pages, whichever of them was imported first."""
    load()
    place = {page: i for i, page in enumerate(all_pages())}
    ordered = sorted(_TABLE.items(), key=lambda item: place.get(item[1].page, len(place)))
    return dict(ordered)


def find(name: str) -> Op | None:
    """The op called `name`, or by an alias; None if there is none."""
    load()
    bare = name.removesuffix("_")
    return _TABLE.get(_ALIASES.get(bare, bare))


def lookup(name: str) -> Op:
    """The op called `name`."""
    found = find(name)
    if found is None:
        import difflib

        near = difflib.get_close_matches(name, _TABLE, 1)
        hint = f" Did you mean {near[0]}?" if near else ""
        raise GraphError(f"there is no op {name!r}.{hint}")
    return found


def names() -> Iterator[str]:
    """Op names and their aliases."""
    load()
    yield from _TABLE
    yield from _ALIASES
