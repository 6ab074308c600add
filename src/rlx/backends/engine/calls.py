"""The calls of an engine: one table, op → function of the engine's arrays.

    @TABLE.call("gather")
    def gather(x, indices, *, axis, site):
        size = x.shape[axis]
        site.require((indices >= 0) & (indices < size), f"an index is out of range …")
        return jnp.take(x, indices, axis=axis, mode="clip")

A call takes operands in order and attributes by the names of the op's reference, with dims bound to
ints, and gives an array, or a tuple where the op has several results. A keyword parameter `site`
asks for the node: shapes of results, constants among operands, what may fail on data. What a
target claims is derived from the table; nothing here imports an engine.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rlx.core.dtype import DType
from rlx.core.errors import Error
from rlx.core.shape import Shape
from rlx.ops.op import Array, lookup

if TYPE_CHECKING:
    from rlx.backends.engine.engine import Engine
    from rlx.ir.mir import Node

Function = Callable[..., Any]
Limit = Callable[["Node"], "str | None"]
"""Why the engine cannot express a node, which the host runs then; None where it can."""


@dataclass(frozen=True, slots=True)
class Failure:
    """What may be wrong with the data of a node: its label, and what to say."""

    label: str
    text: str


@dataclass(frozen=True, slots=True)
class Check:
    """A number that a function computes: 0, or which of these failures there was, from 1 on."""

    failures: tuple[Failure, ...]
    code: Any


@dataclass(slots=True)
class Site:
    """The node that a call is for, with all sizes bound."""

    engine: Engine
    node: Node
    operands: tuple[Shape, ...]
    """As the graph has them: half floats are such."""
    results: tuple[Shape, ...]
    checks: list[Check] = field(default_factory=list["Check"])

    @property
    def result(self) -> Shape:
        """The only one, or the first."""
        return self.results[0]

    def known(self, operand: int) -> Array | None:
        """The value of an operand that is a constant of the graph."""
        node = self.node.inputs[operand]
        return node.attrs["value"].array if node.op == "constant" else None

    def require(self, flag: Any, text: str) -> None:
        """After the call, an error that names the node unless all of `flag` is true."""
        failure = Failure(self.node.label, text)
        self.checks.append(Check((failure,), self.engine.failed(flag)))

    def dtype(self, dtype: DType) -> Any:
        """What the engine calls it."""
        return self.engine.dtype(dtype)

    def cast(self, array: Any, dtype: DType) -> Any:
        """The engine's own cast, which is not the op's."""
        return self.engine.cast(array, dtype)


@dataclass(frozen=True, slots=True)
class Call:
    """A row: how an engine computes an op."""

    op: str
    function: Function | None
    """None where it is the op's own meaning on the engine's namespace."""
    text: str
    """What it is, for `explain`."""
    dtypes: frozenset[DType] | None = None
    """Of operands and results; None is all that the engine holds."""
    halves: bool = False
    """Does it take half floats as they are, and round once by itself?"""
    limit: Limit | None = None
    lowers: Limit | None = None
    """Why a node is lowered although the op has a call; None where it is not."""
    takes_site: bool = False

    def why_not(self, node: Node) -> str | None:
        """Why the engine does not run a node of this op; None if it does."""
        if self.dtypes is not None:
            shapes = (*node.shapes, *(s for i in node.inputs for s in i.shapes))
            for dtype in (s.dtype for s in shapes):
                if dtype not in self.dtypes:
                    return f"the call {self.text} does not take {dtype}"
        return self.limit(node) if self.limit else None


class CallTable:
    """All calls of an engine, which its pages fill when they are imported."""

    def __init__(self, engine: str) -> None:
        self.engine = engine
        self._rows: dict[str, Call] = {}

    def call(
        self,
        *ops: str,
        dtypes: frozenset[DType] | None = None,
        halves: bool = False,
        limit: Limit | None = None,
        lowers: Limit | None = None,
    ) -> Callable[[Function], Function]:
        """Register a function as the call of these ops. A node beyond its `limit` is the host's;
        one that it `lowers` is computed by simpler ops."""

        def register(function: Function) -> Function:
            takes_site = "site" in inspect.signature(function).parameters
            page = function.__module__.rpartition(".")[2]
            text = f"{page}.{function.__name__}"
            for op in ops:
                self._add(Call(op, function, text, dtypes, halves, limit, lowers, takes_site))
            return function

        return register

    def named(
        self,
        namespace: Any,
        *,
        dtypes: frozenset[DType] | None = None,
        halves: bool = False,
        **functions: str,
    ) -> None:
        """Ops that are functions of a namespace: `named(jnp, add="add")`."""
        for op, name in functions.items():
            text = f"{namespace!r}.{name}"
            function = _attribute(namespace, name)
            self._add(Call(op.removesuffix("_"), function, text, dtypes, halves))

    def derived(
        self, *ops: str, dtypes: frozenset[DType] | None = None, limit: Limit | None = None
    ) -> None:
        """Ops whose NumPy meaning runs unchanged on the engine's namespace: see
        `backends/engine/derive.py`."""
        for op in ops:
            self._add(Call(op, None, f"the NumPy meaning of {op}", dtypes, limit=limit))

    def _add(self, row: Call) -> None:
        lookup(row.op)
        if row.op in self._rows:
            raise Error(f"{self.engine}: {row.op} has two calls.")
        self._rows[row.op] = row

    # -- what it holds -----------------------------------------------------------------------------

    def get(self, op: str) -> Call | None:
        return self._rows.get(op)

    def __contains__(self, op: str) -> bool:
        return op in self._rows

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._rows))

    @property
    def rows(self) -> Mapping[str, Call]:
        return self._rows


def _attribute(namespace: Any, name: str) -> Function:
    """The function of a namespace, looked up when it is called."""

    def function(*operands: Any, **attrs: Any) -> Any:
        return getattr(namespace, name)(*operands, **attrs)

    return function
