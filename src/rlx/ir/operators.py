"""Operator overloading on nodes: Python's operators, indexing and a few methods as table ops.

Where a function is traced, `==` and `!=` are the comparison ops, as on arrays. Everywhere else
nodes are compared by identity, as the compiler does; beside a number or an array that would be a
silent False, and is an error.
"""

from __future__ import annotations

from typing import Any

from rlx.ops.op import lookup


def _op(name: str) -> Any:
    return lookup(name)


def _forward(name: str) -> Any:
    return lambda self, other: _op(name)(self, other)


def _reflected(name: str) -> Any:
    return lambda self, other: _op(name)(other, self)


def _unary(name: str) -> Any:
    return lambda self: _op(name)(self)


class Operators:
    """Operators for nodes. Python scalars are weak: they take the node's dtype."""

    __slots__ = ()
    shape: Any
    graph: Any
    __array_ufunc__ = None
    """NumPy hands `array * node` over to the node."""

    __add__, __radd__ = _forward("add"), _reflected("add")
    __sub__, __rsub__ = _forward("sub"), _reflected("sub")
    __mul__, __rmul__ = _forward("mul"), _reflected("mul")
    __pow__, __rpow__ = _forward("pow"), _reflected("pow")
    __floordiv__, __rfloordiv__ = _forward("floor_div"), _reflected("floor_div")
    __mod__, __rmod__ = _forward("mod"), _reflected("mod")
    __matmul__, __rmatmul__ = _forward("matmul"), _reflected("matmul")
    __lt__, __le__ = _forward("less"), _forward("less_equal")
    __gt__, __ge__ = _forward("greater"), _forward("greater_equal")
    __lshift__, __rlshift__ = _forward("shift_left"), _reflected("shift_left")
    __rshift__, __rrshift__ = _forward("shift_right"), _reflected("shift_right")
    __neg__, __abs__ = _unary("neg"), _unary("abs")

    def __truediv__(self, other: Any) -> Any:
        """True division: integers become f32 first."""
        return _true_divide(self, other)

    def __rtruediv__(self, other: Any) -> Any:
        return _true_divide(other, self)

    def __and__(self, other: Any) -> Any:
        return _op("logical_and" if self.dtype.value == "bool" else "bit_and")(self, other)

    def __or__(self, other: Any) -> Any:
        return _op("logical_or" if self.dtype.value == "bool" else "bit_or")(self, other)

    def __xor__(self, other: Any) -> Any:
        return _op("logical_xor" if self.dtype.value == "bool" else "bit_xor")(self, other)

    __rand__, __ror__, __rxor__ = __and__, __or__, __xor__

    def __eq__(self, other: object) -> Any:
        return _op("equal")(self, other) if self.graph.is_traced else _is_same(self, other)

    def __ne__(self, other: object) -> Any:
        return _op("not_equal")(self, other) if self.graph.is_traced else not _is_same(self, other)

    __hash__ = object.__hash__

    def __pos__(self) -> Any:
        return self

    def __invert__(self) -> Any:
        return _op("logical_not" if self.dtype.value == "bool" else "bit_not")(self)

    def __getitem__(self, index: Any) -> Any:
        from rlx.ir.indexing import index_node

        return index_node(self, index)  # pyright: ignore[reportArgumentType]

    def __iter__(self) -> Any:
        raise TypeError("a node is not iterable: its values are not known yet")

    def __array__(self, *_: Any, **__: Any) -> Any:
        """NumPy would make an array of one object of it."""
        raise TypeError("a node has no values while a graph is built. Use rlx.ops instead of NumPy")

    def __bool__(self) -> bool:
        from rlx.core.errors import GraphError

        raise GraphError(
            "a node has no truth value while a graph is built. Use rlx.ops.where or rlx.ops.if_"
        )

    @property
    def dtype(self) -> Any:
        return self.shape.dtype

    @property
    def rank(self) -> int:
        return self.shape.rank

    ndim = rank

    @property
    def T(self) -> Any:
        """The axes in reverse."""
        return _op("transpose")(self, perm=tuple(reversed(range(self.rank))))

    def astype(self, dtype: Any) -> Any:
        return _op("cast")(self, to=dtype)

    def reshape(self, *dims: Any) -> Any:
        given = dims[0] if len(dims) == 1 and isinstance(dims[0], tuple | list) else dims
        return _op("reshape")(self, dims=given)


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
