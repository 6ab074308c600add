"""Operator overloading on nodes: Python's operators, indexing and a few methods as table ops.

Where a function is traced, `==` and `!=` are the comparison ops, as on arrays. Everywhere else
nodes are compared by identity, as the compiler does; beside a number or an array that would be a
silent False, and is an error.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Self, TypeAlias

from rlx.core.dim import DimLike
from rlx.core.dtype import DType
from rlx.core.errors import CallError
from rlx.core.public_calls import public_class
from rlx.ops.op import lookup

if TYPE_CHECKING:
    from rlx.ir.mir import Node
    from rlx.ir.operand_types import DTypeLike, Operand

Axes: TypeAlias = int | Sequence[int] | None


def _op(name: str) -> Any:
    return lookup(name)


def _as_numpy(name: str, *args: Any, **options: Any) -> Any:
    """A method of NumPy's arrays, as the function of that name."""
    from rlx.ir.numpy_names import function

    return function(name, args, options)


def _no_values(what: str) -> Exception:
    from rlx.core.errors import GraphError

    return GraphError(
        f"a node has no values while a graph is built, so it cannot be read {what}. Use rlx.ops"
    )


@public_class
class Operators:
    """Operators for nodes. Python scalars are weak: they take the node's dtype."""

    __slots__ = ()
    shape: Any
    graph: Any

    def __array_ufunc__(self, ufunc: Any, method: str, *operands: Any, **options: Any) -> Any:
        """`np.exp(node)` is an op, and so is `array * node`, which NumPy hands over."""
        from rlx.ir.numpy_names import ufunc as applied

        name = ufunc.__name__
        if name in ("divide", "true_divide") and method == "__call__" and not options:
            return _true_divide(*operands)
        if name in ("equal", "not_equal") and not self.graph.is_traced:
            for value in operands:
                _is_same(self, value)  # a value beside a node is an error: == may be meant
        return applied(name, method, operands, options)

    def __array_function__(self, function: Any, _: Any, args: Any, options: Any) -> Any:
        """`np.concatenate([node, array])` is an op."""
        from rlx.ir.numpy_names import function as applied
        from rlx.ir.numpy_names import qualified

        return applied(qualified(function), args, options)

    def __add__(self, other: Operand) -> Node:
        return _op("add")(self, other)

    def __radd__(self, other: Operand) -> Node:
        return _op("add")(other, self)

    def __sub__(self, other: Operand) -> Node:
        return _op("sub")(self, other)

    def __rsub__(self, other: Operand) -> Node:
        return _op("sub")(other, self)

    def __mul__(self, other: Operand) -> Node:
        return _op("mul")(self, other)

    def __rmul__(self, other: Operand) -> Node:
        return _op("mul")(other, self)

    def __pow__(self, other: Operand) -> Node:
        return _op("pow")(self, other)

    def __rpow__(self, other: Operand) -> Node:
        return _op("pow")(other, self)

    def __floordiv__(self, other: Operand) -> Node:
        return _op("floor_div")(self, other)

    def __rfloordiv__(self, other: Operand) -> Node:
        return _op("floor_div")(other, self)

    def __mod__(self, other: Operand) -> Node:
        return _op("mod")(self, other)

    def __rmod__(self, other: Operand) -> Node:
        return _op("mod")(other, self)

    def __matmul__(self, other: Operand) -> Node:
        return _op("matmul")(self, other)

    def __rmatmul__(self, other: Operand) -> Node:
        return _op("matmul")(other, self)

    def __lshift__(self, other: Operand) -> Node:
        return _op("shift_left")(self, other)

    def __rlshift__(self, other: Operand) -> Node:
        return _op("shift_left")(other, self)

    def __rshift__(self, other: Operand) -> Node:
        return _op("shift_right")(self, other)

    def __rrshift__(self, other: Operand) -> Node:
        return _op("shift_right")(other, self)

    def __lt__(self, other: Operand) -> Node:
        return _op("less")(self, other)

    def __le__(self, other: Operand) -> Node:
        return _op("less_equal")(self, other)

    def __gt__(self, other: Operand) -> Node:
        return _op("greater")(self, other)

    def __ge__(self, other: Operand) -> Node:
        return _op("greater_equal")(self, other)

    def __neg__(self) -> Node:
        return _op("neg")(self)

    def __abs__(self) -> Node:
        return _op("abs")(self)

    def __truediv__(self, other: Operand) -> Node:
        """True division: integers become f32 first."""
        return _true_divide(self, other)

    def __rtruediv__(self, other: Operand) -> Node:
        return _true_divide(other, self)

    def __and__(self, other: Operand) -> Node:
        return _op("logical_and" if self.dtype.value == "bool" else "bit_and")(self, other)

    def __or__(self, other: Operand) -> Node:
        return _op("logical_or" if self.dtype.value == "bool" else "bit_or")(self, other)

    def __xor__(self, other: Operand) -> Node:
        return _op("logical_xor" if self.dtype.value == "bool" else "bit_xor")(self, other)

    __rand__, __ror__, __rxor__ = __and__, __or__, __xor__

    def __eq__(self, other: object) -> Any:
        return _op("equal")(self, other) if self.graph.is_traced else _is_same(self, other)

    def __ne__(self, other: object) -> Any:
        return _op("not_equal")(self, other) if self.graph.is_traced else not _is_same(self, other)

    __hash__ = object.__hash__

    def __pos__(self) -> Self:
        return self

    def __invert__(self) -> Node:
        return _op("logical_not" if self.dtype.value == "bool" else "bit_not")(self)

    def __getitem__(self, index: Any) -> Node:
        from rlx.ir.indexing import index_node

        return index_node(self, index)  # pyright: ignore[reportArgumentType]

    def __iter__(self) -> Any:
        raise CallError(
            f"a node {self.shape} is not iterated over: its values are not known yet. "
            "Take rows by node[i], for i in range of a known size, or reduce by node.sum(0)."
        )

    def __contains__(self, value: object) -> bool:
        raise CallError(
            f"whether {value!r} is in a node {self.shape} is not known yet. "
            f"As data it is (node.graph.equal(node, {value!r})).any()."
        )

    if not TYPE_CHECKING:  # to type checkers a node is no array, and has no other names

        def __getattr__(self, name: str) -> Any:
            raise _no_attribute(name)

        def __array__(self, *_: Any, **__: Any) -> Any:
            """NumPy would make an array of one object of it."""
            raise _no_values("as a NumPy array")

    def __float__(self) -> float:
        raise _no_values("as a number")

    __int__ = __complex__ = __float__  # pyright: ignore[reportAssignmentType]

    def item(self) -> Any:
        """An error: the value is not known before a call."""
        raise _no_values("as a number")

    def tolist(self) -> Any:
        """An error: the values are not known before a call."""
        raise _no_values("as a list")

    def numpy(self) -> Any:
        """An error: the values are not known before a call."""
        raise _no_values("as a NumPy array")

    def __bool__(self) -> bool:
        from rlx.core.errors import GraphError

        raise GraphError(
            "a node has no truth value while a graph is built. Use rlx.ops.where or rlx.ops.if_"
        )

    @property
    def dtype(self) -> DType:
        """The dtype of the elements."""
        return self.shape.dtype

    @property
    def rank(self) -> int:
        """How many axes it has."""
        return self.shape.rank

    @property
    def ndim(self) -> int:
        """How many axes it has, as NumPy calls it."""
        return self.shape.rank

    @property
    def size(self) -> DimLike:
        """How many elements there are."""
        return self.shape.num_elements

    def __len__(self) -> int:
        """The size of the first axis, where it is known."""
        if not self.rank or not isinstance(self.shape.dims[0], int):
            raise _no_length(self.shape)
        return self.shape.dims[0]

    @property
    def T(self) -> Node:
        """The axes in reverse."""
        return _op("transpose")(self, perm=tuple(reversed(range(self.rank))))

    @property
    def mT(self) -> Node:
        """The last two axes swapped: matrices transposed."""
        return self.swapaxes(-1, -2)

    def astype(self, dtype: DTypeLike) -> Node:
        """The elements cast to another dtype."""
        return _op("cast")(self, to=dtype)

    def sum(self, axis: Axes = None, *, keepdims: bool = False) -> Node:
        """The sum over axes, or of all."""
        return _as_numpy("sum", self, axis, keepdims=keepdims)

    def mean(self, axis: Axes = None, *, keepdims: bool = False) -> Node:
        """The mean over axes, or of all."""
        return _as_numpy("mean", self, axis, keepdims=keepdims)

    def max(self, axis: Axes = None, *, keepdims: bool = False) -> Node:
        """The greatest over axes, or of all; NaN if one is."""
        return _as_numpy("max", self, axis, keepdims=keepdims)

    def min(self, axis: Axes = None, *, keepdims: bool = False) -> Node:
        """The least over axes, or of all; NaN if one is."""
        return _as_numpy("min", self, axis, keepdims=keepdims)

    def prod(self, axis: Axes = None, *, keepdims: bool = False) -> Node:
        """The product over axes, or of all."""
        return _as_numpy("prod", self, axis, keepdims=keepdims)

    def any(self, axis: Axes = None, *, keepdims: bool = False) -> Node:
        """Is any true, over axes or of all?"""
        return _as_numpy("any", self, axis, keepdims=keepdims)

    def all(self, axis: Axes = None, *, keepdims: bool = False) -> Node:
        """Are all true, over axes or in all?"""
        return _as_numpy("all", self, axis, keepdims=keepdims)

    def argmax(self, axis: int | None = None, *, keepdims: bool = False) -> Node:
        """Where the first greatest is along an axis; without one, in the flattened array."""
        return _as_numpy("argmax", self, axis, keepdims=keepdims)

    def argmin(self, axis: int | None = None, *, keepdims: bool = False) -> Node:
        """Where the first least is along an axis; without one, in the flattened array."""
        return _as_numpy("argmin", self, axis, keepdims=keepdims)

    def cumsum(self, axis: int | None = None) -> Node:
        """The sum up to each element along an axis; without one, of the flattened array."""
        return _as_numpy("cumsum", self, axis)

    def cumprod(self, axis: int | None = None) -> Node:
        """The product up to each element along an axis; without one, of the flattened array."""
        return _as_numpy("cumprod", self, axis)

    def var(self, axis: Axes = None, *, ddof: int = 0, keepdims: bool = False) -> Node:
        """The variance over axes, or of all."""
        return _as_numpy("var", self, axis, ddof=ddof, keepdims=keepdims)

    def std(self, axis: Axes = None, *, ddof: int = 0, keepdims: bool = False) -> Node:
        """The standard deviation over axes, or of all."""
        return _as_numpy("std", self, axis, ddof=ddof, keepdims=keepdims)

    def reshape(self, *dims: DimLike | Sequence[DimLike]) -> Node:
        """The same elements in other dims, of which one may be -1: `reshape(2, -1)` or a tuple."""
        return _as_numpy("reshape", self, *dims)

    def ravel(self) -> Node:
        """All elements along one axis."""
        return _as_numpy("ravel", self)

    flatten = ravel

    def transpose(self, *axes: int | Sequence[int] | None) -> Node:
        """The axes in another order; without one, in reverse."""
        return _as_numpy("transpose", self, *axes)

    def swapaxes(self, axis1: int, axis2: int) -> Node:
        """Two axes exchanged."""
        return _as_numpy("swapaxes", self, axis1, axis2)

    def squeeze(self, axis: Axes = None) -> Node:
        """Without these axes of size 1, or without all of them."""
        return _as_numpy("squeeze", self, axis)

    def clip(self, min: Operand | None = None, max: Operand | None = None) -> Node:  # noqa: A002
        """Values below `min` and above `max` are those."""
        return _as_numpy("clip", self, min, max)

    def take(self, indices: Operand, axis: int | None = None) -> Node:
        """The elements at these indices along an axis; without one, of the flattened array."""
        return _as_numpy("take", self, indices, axis)

    def round(self) -> Node:
        """To the nearest whole number, halves to the even one."""
        return _as_numpy("round", self)

    def dot(self, other: Operand) -> Node:
        """The matrix product, as NumPy's `dot`."""
        return _as_numpy("dot", self, other)

    def copy(self) -> Self:
        """Itself: nodes do not change."""
        return self

    def __setitem__(self, index: Any, value: Any) -> None:
        from rlx.core.errors import GraphError

        raise GraphError(
            "a node cannot be assigned to: it is a value. Make another with rlx.ops.where, "
            "rlx.ops.concat or rlx.ops.scatter_elements"
        )


def _no_attribute(name: str) -> Exception:
    """The error of a name that arrays or tensors of others have."""
    from rlx.core.errors import UnknownNameError
    from rlx.ops.op import find

    if name.startswith("_"):
        return AttributeError(name)
    meant = {"view": "reshape", "permute": "transpose", "to": "astype", "numel": "size"}.get(name)
    if meant is not None:
        return UnknownNameError(f"a node has no {name!r}. Use node.{meant}")
    op = find(name)
    hint = f"Use rlx.ops.{op.name}(node)" if op is not None else "What there is is in rlx.ops"
    return UnknownNameError(f"a node has no {name!r}. {hint}")


def _no_length(shape: Any) -> Exception:
    from rlx.core.errors import GraphError

    return GraphError(f"a node {shape} has no length that is known now. Read its shape.dims")


def _is_same(node: Operators, other: object) -> bool:
    is_value = isinstance(other, int | float | complex) or hasattr(other, "__array__")
    if is_value and not isinstance(other, Operators):
        from rlx.core.errors import GraphError

        raise GraphError(
            "a node is compared with a value by rlx.ops.equal(node, value): == of nodes is "
            "identity, but inside functions that rlx.jit or rlx.trace traces"
        )
    return node is other


def _true_divide(x: Any, y: Any) -> Any:
    from rlx.core.dtype import DType

    def inexact(v: Any) -> Any:
        whole = isinstance(v, Operators) and not (v.dtype.is_float or v.dtype.is_complex)
        return _op("cast")(v, to=DType.F32) if whole else v

    return _op("div")(inexact(x), inexact(y))
