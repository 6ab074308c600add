"""The argument of an op handler: one node of an FX graph, with torch's shape and dtype for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from rlx import ops
from rlx.core.dim import Dim, DimLike
from rlx.core.dtype import DType
from rlx.core.errors import UnsupportedError
from rlx.core.public_calls import public_class
from rlx.frontends.torch.dtypes import dtype_of
from rlx.frontends.torch.namespaces import torch
from rlx.ir.mir import Graph, Node

if TYPE_CHECKING:
    from rlx.frontends.torch.importer import Importer

Scalar = bool | int | float | complex
Value = Node | Dim | Scalar
"""What stands for a tensor or a number of torch's."""


class Refused(UnsupportedError):
    """What a handler does not do: torch's decomposition may."""


class Declined(UnsupportedError):
    """What neither a handler nor a decomposition computes as torch does."""


@dataclass(frozen=True, slots=True)
class Unused:
    """A result of torch's that rlx does not compute, such as factors for a backward pass. Reading
    it is refused."""

    op: str
    what: str = "factors for a backward pass"


@public_class
@dataclass(frozen=True, slots=True)
class Call:
    """One node. `op` is the name without its overload, `value` torch's fake result."""

    importer: Importer
    target: Any
    op: str
    overload: str
    args: Mapping[str, Any]
    """By the names of the schema, defaults included."""
    fakes: Mapping[str, Any]
    """The same arguments as torch has them: fake tensors, SymInts."""
    value: Any
    tensors: Mapping[str, Any]
    """The same arguments, as what is written to in place."""

    @property
    def graph(self) -> Graph:
        """The graph that is being built."""
        return self.importer.graph

    def without(self, names: Sequence[str]) -> Call:
        """The call without some of its arguments, which are where its results are stored."""
        kept = [
            {k: v for k, v in given.items() if k not in names}
            for given in (self.args, self.fakes, self.tensors)
        ]
        return replace(self, args=kept[0], fakes=kept[1], tensors=kept[2])

    # -- what torch states about results ----------------------------------------------------------

    @property
    def fake(self) -> Any:
        """The fake tensor of the first result."""
        return self.value[0] if isinstance(self.value, tuple | list) else self.value

    @property
    def dtype(self) -> DType:
        """Of the first result."""
        return dtype_of(self.fake.dtype)

    @property
    def wide(self) -> DType:
        """What torch computes the first result in: half floats are rounded once, at the end."""
        return DType.F32 if self.dtype in (DType.F16, DType.BF16) else self.dtype

    @property
    def dims(self) -> tuple[DimLike, ...]:
        """Of the first result."""
        return self.dims_of(self.fake)

    def dims_of(self, fake: Any) -> tuple[DimLike, ...]:
        """The dims of a tensor's shape, named ones included."""
        return self.importer.sizes.dims(fake)

    # -- operands -------------------------------------------------------------------------------

    def node(self, value: Any, dtype: DType | None = None) -> Node:
        """A value as a node, of a dtype where one is given."""
        if isinstance(value, Dim):
            value = self.graph.node("extent", (), {"dim": value, "dtype": DType.I64})
        if not isinstance(value, Node):
            return self.constant(value, dtype or _default(value))
        return value if dtype is None else converted(value, dtype)

    def nodes(self, *values: Any, dtype: DType | None = None) -> list[Node]:
        """Values of one dtype, that of the result if none is given."""
        wanted = dtype or self.dtype
        return [self.node(v, wanted) for v in values]

    def wide_nodes(self, *values: Any) -> list[Node]:
        """Values as torch computes with them: tensors in the dtype of the result before."""
        own = [self.node(v, self.dtype) if isinstance(v, Node) else v for v in values]
        return self.nodes(*own, dtype=self.wide)

    def constant(self, value: Any, dtype: DType) -> Node:
        """A value as a constant of a dtype."""
        with np.errstate(all="ignore"):
            return self.graph.constant(np.asarray(value).astype(dtype.numpy))

    def promoted(self, *names: str) -> DType:
        """What torch's promotion makes of these arguments."""
        found = [self.fakes[n] for n in names]
        kind = found[0].dtype if isinstance(found[0], torch.Tensor) else None
        if len(found) == 1:
            return dtype_of(kind)
        return dtype_of(torch.result_type(found[0], found[1]))

    def filled(self, value: Any, fake: Any = None) -> Node:
        """A tensor of the result's shape and dtype, all of one value."""
        like = self.fake if fake is None else fake
        return ops.expand(self.node(value, dtype_of(like.dtype)), dims=self.dims_of(like))

    def empty(self, fake: Any) -> Node:
        """A tensor of this shape, which has no elements."""
        return self.filled(0, fake)

    def positions(self, dims: Sequence[DimLike], axis: int) -> Node:
        """Each element's place along an axis."""
        attrs = {"dims": tuple(dims), "axis": axis, "dtype": DType.I64}
        return self.graph.node("iota", (), attrs)

    # -- effects ----------------------------------------------------------------------------------

    def write(self, name: str, value: Node) -> None:
        """Store a value into a tensor that the op changes in place."""
        self.importer.write(self.tensors[name], self.fakes[name], value)

    def refuse(self, why: str) -> NoReturn:
        """The error of what is not imported, with the node and the reason."""
        raise Refused(why)

    def require_wide(self, x: Node, why: str) -> None:
        """Decline half floats, where torch's own rounding between the steps is most of a result."""
        if x.shape.dtype.itemsize <= 2:
            raise Declined(why)

    def require(self, holds: bool, why: str) -> None:
        """Refuse the node where this does not hold."""
        if not holds:
            raise Refused(why)

    def require_equal(self, stated: DimLike, size: DimLike) -> None:
        """Have a program serve calls alone at which a size is what torch states. It does so of
        sizes above 1, and of those for which its guards hold."""
        graph = self.importer.outermost.graph
        for difference in (stated - size, size - stated):
            graph.require(difference, f"{self.op}: torch has {stated} elements, not {size}")

    def whole(self, *dims: DimLike, what: str = "a size") -> tuple[int, ...]:
        """Sizes that must be known when the graph is built."""
        for d in dims:
            if not isinstance(d, int):
                self.refuse(f"{what} must be known when the graph is built, and it is {d}")
        return tuple(d for d in dims if isinstance(d, int))


def converted(x: Node, dtype: DType) -> Node:
    """x cast as torch does: complex numbers are true where a part is not zero."""
    if x.shape.dtype is dtype:
        return x
    if x.shape.dtype.is_complex and dtype is DType.BOOL:
        return ops.not_equal(x, 0)
    real = ops.real(x) if x.shape.dtype.is_complex and not dtype.is_complex else x
    if real.shape.dtype.is_float and dtype in (DType.U8, DType.I8, DType.I16, DType.I32):
        return ops.cast(_truncated(real, DType.I32), to=dtype)
    if real.shape.dtype.is_float and dtype is DType.I64:
        return _truncated(real, dtype)
    return ops.cast(real, to=dtype)


def _truncated(x: Node, to: DType) -> Node:
    """The integer of a float, as processors convert: its least where none fits. Narrower integers
    are the low bits of i32, where a cast of the table saturates."""
    least = np.iinfo(to.numpy).min
    with np.errstate(all="ignore"):
        limit = np.asarray(-float(least)).astype(x.shape.dtype.numpy)
    fits = ops.less(x, x.graph.constant(limit))
    return ops.where(fits, ops.cast(x, to=to), x.graph.constant(np.asarray(least, to.numpy)))


def _default(value: Any) -> DType:
    """The dtype of a Python scalar in torch."""
    kinds = {bool: DType.BOOL, int: DType.I64, float: DType.F32, complex: DType.C64}
    return kinds.get(type(value), DType.F32)


def rank(x: Node) -> int:
    return x.shape.rank


def axis_of(x: Node | int, dim: int) -> int:
    """An axis from the front; a scalar has one that is not there."""
    count = x if isinstance(x, int) else x.shape.rank
    return dim % max(count, 1)


def axes_of(x: Node, dim: Any) -> tuple[int, ...]:
    """Axes that a reduction folds: none given are all."""
    if dim is None or (isinstance(dim, list | tuple) and not dim):
        return tuple(range(x.shape.rank))
    given = dim if isinstance(dim, list | tuple) else [dim]
    return tuple(sorted({axis_of(x, d) for d in given})) if x.shape.rank else ()


def pair(value: Any, count: int) -> tuple[Any, ...]:
    """One number per spatial axis."""
    given = list(value) if isinstance(value, list | tuple) else [value]
    return tuple(given * count if len(given) == 1 else given)
