"""What expressions say, as a hashable value: equal for kernels that differ in objects alone."""

from __future__ import annotations

from collections.abc import Hashable, Iterable

from rlx.kernel.expr import (
    Accumulator,
    Affine,
    Apply,
    Axis,
    Choose,
    Const,
    Expr,
    Index,
    Inside,
    Kernel,
    Load,
    Reduce,
    Size,
    postorder,
)


class Structure:
    """Axes and expressions by the order in which they are met."""

    def __init__(self) -> None:
        self._axes: dict[Axis, int] = {}
        self._nodes: dict[Expr, int] = {}
        self._rows: list[Hashable] = []

    def axis(self, axis: Axis | None) -> int:
        """The number of an axis; -1 for none."""
        if axis is None:
            return -1
        if axis not in self._axes:
            self._axes[axis] = len(self._axes)
            self._rows.append(axis.extent)
        return self._axes[axis]

    def axes(self, axes: Iterable[Axis]) -> tuple[int, ...]:
        return tuple(map(self.axis, axes))

    def affine(self, at: Affine) -> Hashable:
        return tuple((self.axis(a), c) for a, c in at.terms), at.offset

    def expr(self, root: Expr) -> int:
        """The number of an expression."""
        for node in postorder([root]):
            if node not in self._nodes:
                args = tuple(self._nodes[a] for a in node.args)
                row = (type(node).__name__, node.dtype, args, self._payload(node))
                self._rows.append(row)
                self._nodes[node] = len(self._nodes)
        return self._nodes[root]

    def _payload(self, node: Expr) -> Hashable:
        match node:
            case Const():
                return node.value.tobytes()
            case Size():
                return node.dim
            case Index():
                return self.affine(node.at)
            case Inside():
                return self.affine(node.at), node.low, node.high
            case Load():
                return node.operand, self.affine(node.at), node.stride, node.bound
            case Apply():
                return node.op.name, tuple(map(_exact, node.attrs.items()))
            case Reduce():
                return node.fold, self.axis(node.axis)
            case Accumulator():
                return node.part
            case Choose():
                return ()
            case _:
                raise AssertionError(node)

    @property
    def value(self) -> Hashable:
        """All that was met."""
        return tuple(self._rows)


def _exact(attribute: tuple[str, Hashable]) -> Hashable:
    """1, 1.0 and True are equal, and so are 0.0 and -0.0; their types and texts are not."""
    name, value = attribute
    return name, type(value).__name__, str(value), value


def structure_of(kernel: Kernel) -> Hashable:
    """Kernels of equal structure compute the same, from and to the same places."""
    made = Structure()
    axes = made.axes(kernel.axes)
    stores = tuple((s.result, made.affine(s.at), made.expr(s.value)) for s in kernel.stores)
    return axes, stores, kernel.operands, kernel.results, made.value
