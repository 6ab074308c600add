"""Expressions of loop kernels as nodes: loads, elementwise ops, guards.

A thread does one point of the index space, or a few neighbours along one axis: then what varies
along that axis is as many values, and contiguous ones are loaded and stored as vectors.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence

from rlx.backends.gpu.lower.elementwise import apply, constant, scaled_reciprocal
from rlx.backends.gpu.lower.fast import half_precision
from rlx.backends.gpu.lower.scopes import Guards, Scopes, Values
from rlx.backends.gpu.schedule.loop import is_aligned
from rlx.backends.gpu.task import FAILURES
from rlx.core.dim import DimLike, exact_div
from rlx.core.dtype import DType
from rlx.core.errors import UnsupportedError
from rlx.kernel.expr import (
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
)
from rlx.kernel.reciprocal import row_quotients
from rlx.program.builder import Builder
from rlx.program.nodes import MAX_VECTOR_BYTES
from rlx.program.values import BufferRef, Var


class Expressions(Scopes, ABC):
    """Values of a kernel's expressions, each made once where it belongs."""

    def __init__(
        self,
        builder: Builder,
        kernel: Kernel,
        index: DType,
        vector: Axis | None,
        constants: frozenset[int],
    ) -> None:
        super().__init__(builder, kernel, index)
        self.vector = vector
        self.inputs: list[BufferRef] = []
        self.outputs: list[BufferRef] = []
        self.declare(constants)
        rows = gathers(kernel)
        self.failures = builder.buffer(FAILURES, DType.I32, "update", 1) if rows else None
        self.half = half_precision(kernel)
        self.quotients = row_quotients(kernel) | self.half.quotients
        self.codes = {n: builder.failure(failure_text(n)) for n in rows}

    def declare(self, constants: frozenset[int]) -> None:
        """The buffers of operands and results."""
        access = lambda i: "constant" if i in constants else "read"
        self.inputs = [
            self.b.buffer(f"x{i}", s.dtype.real, access(i))
            for i, s in enumerate(self.kernel.operands)
        ]
        self.outputs = [
            self.b.output(f"y{i}", s.dtype.real) for i, s in enumerate(self.kernel.results)
        ]

    def value(self, root: Expr, guards: Guards = ()) -> Values:
        """The values of an expression; works on a stack, as bodies may be long chains."""
        root = self.half.source(root)
        stack = [root]
        while stack:
            node = stack[-1]
            if self.find(node, guards) is not None:
                stack.pop()
                continue
            is_lazy = isinstance(node, Reduce | Choose)
            args = () if is_lazy else self.half.arguments(node)
            missing = [a for a in args if self.find(a, guards) is None]
            stack += missing
            if not missing:
                self._make(stack.pop(), guards)
        found = self.find(root, guards)
        assert found is not None
        return found

    def _make(self, node: Expr, guards: Guards) -> None:
        given = self.relevant(node, guards)
        with self.at(self.place(node, given)) as scope:
            scope.known[node, given] = self._made(node, given)

    def _made(self, node: Expr, guards: Guards) -> Values:
        match node:
            case Const():
                return [constant(self.b, node)]
            case Size():
                return [self.number(node.dim).to(node.dtype.compute)]
            case Index():
                return [v.to(DType.I64) for v in self.affine(node.at)]
            case Inside():
                return self._inside(node)
            case Load():
                return self._loaded(node, guards)
            case Apply() if node in self.quotients:
                return self._quotient(node, guards)
            case Apply():
                args = [self.value(a, guards) for a in self.half.arguments(node)]
                return [self._applied(node, slot) for slot in zipped(args)]
            case Choose():
                return self._chosen(node, guards)
            case Reduce():
                return self.reduced(node, guards)
            case _:
                raise UnsupportedError(
                    f"kernel {self.kernel.name}: GPUs have no {type(node).__name__} of a kernel."
                )

    def _applied(self, node: Apply, args: list[Var]) -> Var:
        fused = self.half.fused.get(node)
        if fused is not None:
            return fused.apply(self.b, *args)
        return apply(self.b, node, args, self.half.fast.get(node))

    def _quotient(self, node: Apply, guards: Guards) -> Values:
        """Of a row by its sum: one division where the sum is, and products along the row."""
        row, total = self.half.arguments(node)
        given = self.relevant(total, guards)
        with self.at(self.place(total, given)) as scope:
            if (total, given) not in scope.reciprocals:
                made = [scaled_reciprocal(self.b, v) for v in self.value(total, guards)]
                scope.reciprocals[total, given] = made
            pairs = scope.reciprocals[total, given]
        scales, factors = [s for s, _ in pairs], [f for _, f in pairs]
        return [x * s * f for x, s, f in zipped([self.value(row, guards), scales, factors])]

    def _inside(self, node: Inside) -> Values:
        """At each neighbour; once where the ends are multiples of whole vectors."""
        index = self.affine(node.at)
        width = len(index)
        ends = all(exact_div(e, width) is not None for e in (node.low, node.high) if e != 0)
        if width > 1 and ends and self.is_vector(node.at, width):
            index = index[:1]
        low, high = self.dim(node.low), self.dim(node.high)
        return [(v >= low) & (v < high) for v in index]

    @abstractmethod
    def reduced(self, node: Reduce, guards: Guards) -> Values:
        """The value of a reduction; how it is combined is the schedule's."""

    # -- guards ----------------------------------------------------------------------------------

    def _chosen(self, node: Choose, guards: Guards) -> Values:
        """Each side under its guard. A chain of choices, as a concatenation is, is a loop here."""
        parts: list[tuple[Values, Values]] = []
        last: Expr = node
        while isinstance(last, Choose):
            guard, yes, no = last.args
            parts.append((self.value(guard, guards), self.value(yes, (*guards, (guard, True)))))
            guards, last = (*guards, (guard, False)), no
        value = self.value(last, guards)
        for holds, yes in reversed(parts):
            value = [a.where(c, b) for c, a, b in zipped([holds, yes, value])]
        return value

    def masks(self, guards: Guards) -> Values:
        """Whether memory may be touched, at each neighbour; none where it always may."""
        lists: list[Values] = [[m] for m in self.point_masks()]
        for i, (guard, holds) in enumerate(guards):
            lists.append([v if holds else ~v for v in self.value(guard, guards[:i])])
        return [c for slot in zipped(lists) if (c := combined(slot)) is not None]

    # -- memory ----------------------------------------------------------------------------------

    def _loaded(self, node: Load, guards: Guards) -> Values:
        return [v.to(node.dtype.compute) for v in self.fetched(node, guards)]

    def request_load(self, node: Load) -> None:
        """Load elements where they belong, and do not use them yet: nothing waits for them."""
        with self.at(self.place(node, ())) as scope:
            if node not in scope.requested:
                scope.requested[node] = self._fetched(node, ())

    def fetched(self, node: Load, guards: Guards) -> Values:
        """The elements as they are stored."""
        found = self.scopes[-1].requested.get(node)
        return self._fetched(node, guards) if found is None else found

    def _fetched(self, node: Load, guards: Guards) -> Values:
        index, masks = self.affine(node.at), self.masks(guards)
        if node.args:
            index, masks = self._gathered(node, index, masks, guards)
        buffer = self.inputs[node.operand]
        read = self._vectors if self._is_contiguous(node, index, masks) else self._scalars
        return read(buffer, index, masks)

    def _is_contiguous(self, node: Load, index: Values, masks: Values) -> bool:
        return (
            len(index) > 1
            and len(masks) < 2
            and self.is_vector(node.at, len(index), node.stride)
            and not any(self.vector in a.free for a in node.args)
        )

    def is_vector(self, at: Affine, width: int, stride: DimLike = 0) -> bool:
        return self.vector is not None and is_aligned(at, self.vector, width, stride)

    def _vectors(self, buffer: BufferRef, index: Values, masks: Values) -> Values:
        size = min(len(index), MAX_VECTOR_BYTES // buffer.dtype.itemsize)
        mask = masks[0] if masks else None
        starts = range(0, len(index), size)
        return [v for s in starts for v in buffer.load(index[s], size, mask)]

    def _scalars(self, buffer: BufferRef, index: Values, masks: Values) -> Values:
        if not masks:
            return [buffer[i] for i in index]
        return [buffer.load(i, 1, m)[0] for i, m in zipped([index, masks])]

    def _gathered(
        self, node: Load, index: Values, masks: Values, guards: Guards
    ) -> tuple[Values, Values]:
        """The index with the gathered row; one that is not there is noted and not read."""
        rows = self.value(node.args[0], guards)
        inside = [_is_row(r, self.dim(node.bound)) for r in rows]
        pairs = zipped([masks, inside]) if masks else []
        known = [m & i for m, i in pairs] or inside
        self._failed(node, [m & ~i for m, i in pairs] or [~i for i in inside])
        zero = self.b.const(0, self.index_dtype)
        safe = [r.to(self.index_dtype).where(i, zero) for r, i in zip(rows, inside)]
        moved = [i + r * self.dim(node.stride) for i, r in zipped([index, safe])]
        return moved, known

    def _failed(self, node: Load, wrong: Values) -> None:
        assert self.failures is not None
        total = wrong[0]
        for more in wrong[1:]:
            total = total | more
        self.b.atomic(self.failures, "max", 0, self.codes[node], total)

    def store(self, result: int, at: Affine, values: Values, masks: Values) -> None:
        """Values as the result's elements."""
        buffer = self.outputs[result]
        index = self.affine(at)
        given = [v.to(buffer.dtype) for (v, _) in zipped([values, index])]
        if len(index) > 1 and len(masks) < 2 and self.is_vector(at, len(index)):
            size = min(len(index), MAX_VECTOR_BYTES // buffer.dtype.itemsize)
            for s in range(0, len(index), size):
                buffer.store(index[s], given[s : s + size], masks[0] if masks else None)
            return
        for slot in zipped([index, given, masks] if masks else [index, given]):
            buffer.store(slot[0], [slot[1]], slot[2] if masks else None)


def gathers(kernel: Kernel) -> list[Load]:
    """The loads of gathered rows, each with a code for a row that is not there."""
    return [n for n in kernel.nodes if isinstance(n, Load) and n.args]


def failure_text(node: Load) -> str:
    return f"operand {node.operand}: an index is out of range for {node.bound} rows"


def _is_row(row: Var, bound: Var | int) -> Var:
    """0 ≤ row < bound, in the wider of the two dtypes."""
    wide = row.to(DType.I64) if row.dtype is not DType.U64 else row
    high = bound.to(wide.dtype) if isinstance(bound, Var) else bound
    below = wide < high
    return below if wide.dtype is DType.U64 else below & (wide >= 0)


def zipped(lists: Sequence[Values]) -> list[list[Var]]:
    """Slot by slot, single values repeated."""
    count = max((len(v) for v in lists), default=0)
    return [[v[s if len(v) > 1 else 0] for v in lists] for s in range(count)]


def combined(values: Iterable[Var]) -> Var | None:
    """All of them hold; none for no condition."""
    total: Var | None = None
    for value in values:
        total = value if total is None else total & value
    return total
