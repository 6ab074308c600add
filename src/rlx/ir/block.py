"""The block table: layers as HIR ops, declared once like an op.

    @block("f[*b m k], f[k n], f[n]? -> f[*b m n]")
    def linear(x, w, bias=None, *, activation: str | None = None, policy=FUSABLE):
        '''activation(x · w + bias).'''
        if policy is DIRECT and bias is not None:
            return ...                   # fused ops at once
        return ...                       # primitive ops: the meaning, and what passes can fuse

The body is written in `rlx.ops` and in other blocks, so on arrays it computes, on nodes it builds,
and on shapes it is the shape rule, asked once the signature has been checked.

Of several operands that may be left out, any may be: a node holds those it was given, and the
attribute `without` names the ones missing among them, which the builder fills in.
"""

from __future__ import annotations

import copy
import enum
import functools
import importlib
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from rlx.core.dim import DimLike
from rlx.core.errors import Error, GraphError
from rlx.core.shape import Shape
from rlx.ir.mir import Graph, Node
from rlx.ops import op
from rlx.ops.compose import graph_flops
from rlx.ops.op import Kind, Op

PAGES = (
    "dense",
    "packed",
    "experts",
    "recurrent",
    "transformer",
    "encoders",
    "vision",
    "signal",
)
WITHOUT = "without"
Body = Callable[..., Any]


class FusionPolicy(enum.Enum):
    """How lowering decomposes a block."""

    DIRECT = "direct"  # fused ops at once
    FUSABLE = "fusable"  # primitives, for the passes to find


DIRECT, FUSABLE = FusionPolicy.DIRECT, FusionPolicy.FUSABLE


class Block(Op):
    """One row of the block table. Calling it applies the body; only a HirModule makes nodes."""

    def __init__(self, body: Body, signature: str, *, label: str = "{name}", **facts: Any) -> None:
        parameters = inspect.signature(body).parameters.values()
        self.operand_names = tuple(p.name for p in parameters if p.kind is not p.KEYWORD_ONLY)
        optional = [p for p in parameters if p.name in self.operand_names and p.default is None]
        self._placed = _placing(body, self.operand_names) if len(optional) > 1 else body
        meaning = _fusable(self._placed)
        facts |= {"kind": Kind.BLOCK, "shape": meaning, "is_exact": True}
        super().__init__(meaning, signature, **facts)
        self.lower, self._body, self._label = meaning, body, label
        self._has_policies = any(p.name == "policy" for p in parameters)
        if self._placed is not body:
            self.normal(self._needed_names)

    def decomposition(self, policy: FusionPolicy) -> Body:
        """The decomposition of the block under `policy`."""
        return (
            functools.partial(self._placed, policy=policy) if self._has_policies else self._placed
        )

    def label(self, attrs: Mapping[str, Any]) -> str:
        """What provenance calls the block."""
        return self._label.format(name=self.name, **attrs)

    def expanded(
        self,
        shapes: Sequence[Shape],
        attrs: Mapping[str, Any],
        policy: FusionPolicy = FUSABLE,
    ) -> Graph:
        """The block as a graph of its own."""
        graph = Graph(self.name)
        graph.traces_lines = False
        names = self._names_given(attrs)
        operands = [graph.input(name, s) for name, s in zip(names, shapes)]
        graph.set_outputs(results_of(self.decomposition(policy)(*operands, **attrs)))
        return graph

    def flops(
        self, shapes: Sequence[Shape], results: Sequence[Shape], attrs: Mapping[str, Any]
    ) -> DimLike:
        return graph_flops(self.expanded(shapes, attrs))

    def __call__(self, *args: Any, **attrs: Any) -> Any:
        return self._body(*args, **attrs)

    def build(self, graph: Graph, args: Sequence[Any], attrs: Mapping[str, Any]) -> Any:
        """A node of this block. Operands may be given by name, attributes by position."""
        try:
            operands, rest = self._sorted(args, attrs)
        except GraphError as error:
            raise GraphError(f"{self.name}{graph._here()}: {error}") from None  # pyright: ignore[reportPrivateUsage]
        missing = tuple(n for n, o in zip(self.operand_names, operands) if o is None)
        if missing and WITHOUT in self.attr_specs:
            rest[WITHOUT] = missing
        given = [o for o in operands if o is not None]
        nodes = self.of_given(rest)._operands(graph, self._flattened(given))
        return self._built(graph, nodes, rest)

    def infer(self, shapes: Sequence[Shape], attrs: Mapping[str, Any]) -> tuple[Shape, ...]:
        return Op.infer(self.of_given(attrs), shapes, attrs)

    def _names_given(self, attrs: Mapping[str, Any]) -> list[str]:
        """The operands there can be, in order."""
        missing = attrs.get(WITHOUT, ())
        return [n for n in self.operand_names if n not in missing]

    def of_given(self, attrs: Mapping[str, Any]) -> Block:
        """The block as if it had only the operands given."""
        if not attrs.get(WITHOUT):
            return self
        given, signature = set(self._names_given(attrs)), self.signature
        kept = tuple(o for n, o in zip(self.operand_names, signature.operands) if n in given)
        reduced = copy.copy(self)
        reduced.signature = replace(signature, operands=kept)
        return reduced

    def _needed_names(self, *shapes: Shape, without: Sequence[str], **_: Any) -> dict[str, Any]:
        """`without` in order, and none that follow the last operand given."""
        least = self.signature.min_arity
        for name in without:
            if name not in self.operand_names[least:]:
                raise GraphError(f"attribute {WITHOUT}: {name!r} is no operand to be left out")
        given = self._names_given({WITHOUT: without})[: len(shapes)]
        last = self.operand_names.index(given[-1])
        kept = tuple(n for n in self.operand_names[:last] if n in without)
        return {WITHOUT: kept}

    def _sorted(
        self, args: Sequence[Any], attrs: Mapping[str, Any]
    ) -> tuple[list[Any], dict[str, Any]]:
        """The operands in order, the last ones left out where None, and the attributes."""
        names = [*self.operand_names, *self.attr_specs]
        if len(args) > len(names) or any(
            isinstance(a, Node) for a in args[len(self.operand_names) :]
        ):
            self.signature.check_arity(len(args))
        given = dict(zip(names, args))
        if twice := sorted(given.keys() & attrs.keys()):
            raise GraphError(f"{twice[0]} is given twice")
        given |= attrs
        operands = [given.pop(name, None) for name in self.operand_names]
        while operands and operands[-1] is None:
            operands.pop()
        self._check_present(operands)
        return operands, given

    def _check_present(self, operands: Sequence[Any]) -> None:
        least = self.signature.min_arity
        present = [*operands, *[None] * least][:least]
        for name, operand in zip(self.operand_names, present):
            if operand is None:
                wanted = ", ".join(self.operand_names[:least])
                raise GraphError(f"needs operand {name!r}. It takes at least {wanted}")

    def __repr__(self) -> str:
        return f"<block {self.name}: {self.signature.text}>"


def _placing(body: Body, names: Sequence[str]) -> Body:
    """The body on the operands given alone: None stands where `without` names one."""

    def placed(*operands: Any, without: Sequence[str] = (), **attrs: Any) -> Any:
        return body(**dict(zip((n for n in names if n not in without), operands)), **attrs)

    extra = inspect.Parameter(WITHOUT, inspect.Parameter.KEYWORD_ONLY, default=())
    parameters = [*inspect.signature(body).parameters.values(), extra]
    return _declared(placed, body, parameters, {WITHOUT: "tuple[str, ...]"})


def _declared(
    function: Body, body: Body, parameters: Sequence[inspect.Parameter], more: Mapping[str, Any]
) -> Body:
    """`function`, which stands for `body`, with other parameters and `more` annotations. That of
    Python 3.14's functools copies no annotations that were assigned."""
    functools.update_wrapper(function, body)
    vars(function)["__signature__"] = inspect.Signature(parameters)
    function.__annotations__ = {**more, **body.__annotations__}
    return function


def sharing(options: Body) -> Callable[[Body], Body]:
    """A body whose keyword arguments `**how` are those that `options` declares: blocks that take
    the same attributes state them once."""

    def declare(body: Body) -> Body:
        own, shared = (inspect.signature(f).parameters.values() for f in (body, options))
        kept = [p for p in own if p.kind is not p.VAR_KEYWORD]
        added = [p for p in shared if p.kind is p.KEYWORD_ONLY]

        def shared_body(*operands: Any, **attrs: Any) -> Any:
            how = {p.name: p.default for p in added if p.default is not p.empty}
            return body(*operands, **how | attrs)

        return _declared(shared_body, body, [*kept, *added], options.__annotations__)

    return declare


def _fusable(body: Body) -> Body:
    """The body without its `policy`, which is the module's to give and no attribute."""
    declared = inspect.signature(body)
    if "policy" not in declared.parameters:
        return body

    def fusable(*operands: Any, **attrs: Any) -> Any:
        return body(*operands, **attrs, policy=FUSABLE)

    rest = [p for p in declared.parameters.values() if p.name != "policy"]
    return _declared(fusable, body, rest, {})


def results_of(made: Any) -> tuple[Any, ...]:
    """What a body returned, as a tuple."""
    return made if isinstance(made, tuple) else (made,)


_NAMED: dict[str, Block] = {}
_IS_LOADED: list[bool] = []


def block(signature: str, **facts: Any) -> Callable[[Body], Block]:
    """Declare a block: the decorated function decomposes it into ops."""

    def declare(body: Body) -> Block:
        new = Block(body, signature, **facts)
        for name in (new.name, *new.aliases):
            if name in _NAMED:
                raise Error(f"block {name} is declared twice")
            _NAMED[name] = new
        return new

    return declare


def _loaded() -> dict[str, Block]:
    """Blocks by name and by alias."""
    if not _IS_LOADED:
        _IS_LOADED.append(True)
        op.load()
        for page in PAGES:
            importlib.import_module(f"rlx.blocks.{page}")
    return _NAMED


def table() -> dict[str, Block]:
    """Every block by name, in the order of the pages."""
    return {name: b for name, b in _loaded().items() if name == b.name}


def names() -> Iterator[str]:
    """Blocks and their aliases."""
    yield from _loaded()


def find(name: str) -> Op | None:
    """The block or op called `name`: what a node of a HirModule can be."""
    return _loaded().get(name) or op.find(name)
