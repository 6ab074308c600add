"""Where expressions of a loop kernel are computed: in the outermost place that has their axes open.

A scope is a place in the program with some axes open. A value that does not vary with the inner
axes is put in front of their loop, however late it is asked for, so it is made once. Loads under a
guard are made under it, and once for each guard, as what it rules out must not be read.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from rlx.backends.gpu.schedule.loop import is_padded
from rlx.core.dim import Dim, DimLike, is_static, product, provably_le
from rlx.core.dtype import DType
from rlx.core.errors import Error
from rlx.kernel.expr import Affine, Axis, Choose, Expr, Inside, Kernel, Load
from rlx.program.builder import Builder
from rlx.program.values import Var

Guards = tuple[tuple[Expr, bool], ...]
"""Conditions, each with whether it holds here or does not; the outermost first."""
Values = list[Var]
"""One for each neighbour that a thread does; one where they are all the same."""


@dataclass(slots=True)
class Scope:
    """A place with axes open."""

    depth: int
    """Of its region."""
    index: dict[Axis, Values]
    mask: Var | None = None
    """Is this a point of the axes at all?"""
    known: dict[tuple[Expr, Guards], Values] = field(
        default_factory=dict[tuple[Expr, Guards], Values]
    )
    reciprocals: dict[tuple[Expr, Guards], list[tuple[Var, Var]]] = field(
        default_factory=dict[tuple[Expr, Guards], list[tuple[Var, Var]]]
    )
    """Of values that rows are divided by: the scale of each, and one over the scaled value."""
    requested: dict[Load, Values] = field(default_factory=dict[Load, Values])
    """Elements as they are stored, which were loaded before they are needed."""

    def moved(self, depth: int, mask: Var | None) -> Scope:
        """The same place in an inner region, with all that is known outside of it."""
        return Scope(depth, self.index, mask, dict(self.known), requested=dict(self.requested))


class Scopes:
    """The open scopes of a program under construction, the outermost first."""

    def __init__(self, builder: Builder, kernel: Kernel, index: DType) -> None:
        self.b, self.kernel, self.index_dtype = builder, kernel, index
        self.scopes: list[Scope] = []
        self.sizes: dict[Dim, Var] = {}
        self.guarded = guarded(kernel, any(is_padded(kernel, a) for a in kernel.axes))

    # -- numbers ---------------------------------------------------------------------------------

    def dim(self, dim: DimLike) -> Var | int:
        """A number, or the argument that holds it."""
        if is_static(dim):
            return dim
        assert isinstance(dim, Dim)
        if dim not in self.sizes:
            name = f"n{len(self.sizes)}"
            self.sizes[dim] = self.b.size(name, dim, self.index_dtype)
        return self.sizes[dim]

    def number(self, dim: DimLike) -> Var:
        value = self.dim(dim)
        return value if isinstance(value, Var) else self.b.const(value, self.index_dtype)

    def affine(self, at: Affine) -> Values:
        """The index at each neighbour."""
        slots = max((len(self.position(a)) for a, _ in at.terms), default=1)
        return [self._affine(at, s) for s in range(slots)]

    def _affine(self, at: Affine, slot: int) -> Var:
        total = self.number(at.offset)
        for axis, coefficient in at.terms:
            found = self.position(axis)
            total = total + found[slot if len(found) > 1 else 0] * self.dim(coefficient)
        return total

    def position(self, axis: Axis) -> Values:
        for scope in reversed(self.scopes):
            if axis in scope.index:
                return scope.index[axis]
        raise Error(f"kernel {self.kernel.name}: axis {axis.name} is not open where it is used.")

    def opened(self, axes: Sequence[Axis], flat: Var, width: int) -> dict[Axis, Values]:
        """The indices of axes at a flat position, the last the fastest, and so many neighbours."""
        found: dict[Axis, Values] = {}
        for number, axis in reversed(list(enumerate(axes))):
            inner = flat if number == 0 else flat % self.dim(axis.extent)
            flat = flat if number == 0 else flat // self.dim(axis.extent)
            slots = width if axis is axes[-1] else 1
            found[axis] = [inner + s for s in range(slots)]
        return found

    # -- places ----------------------------------------------------------------------------------

    def place(self, node: Expr, guards: Guards) -> int:
        """The scope that a value belongs to."""
        free = node.free.union(*(g.free for g, _ in guards)) if guards else node.free
        return max((self._level(a) for a in free), default=0)

    def _level(self, axis: Axis) -> int:
        for level in range(len(self.scopes) - 1, -1, -1):
            if axis in self.scopes[level].index:
                return level
        raise Error(f"kernel {self.kernel.name}: axis {axis.name} is not open where it is used.")

    def relevant(self, node: Expr, guards: Guards) -> Guards:
        """Guards matter to what they may keep from reading memory only."""
        return guards if node in self.guarded else ()

    def find(self, node: Expr, guards: Guards) -> Values | None:
        """The value, if it was made under these guards or under fewer of them."""
        given = self.relevant(node, guards)
        for count in range(len(given) + 1):
            some = given[:count]
            found = self.scopes[self.place(node, some)].known.get((node, some))
            if found is not None:
                return found
        return None

    @contextmanager
    def at(self, level: int) -> Generator[Scope]:
        """Nodes go to this scope, in front of what is open inside of it."""
        rest = self.scopes[level + 1 :]
        del self.scopes[level + 1 :]
        inner = self.b.suspend(self.scopes[level].depth)
        yield self.scopes[level]
        self.b.resume(inner)
        self.scopes += rest

    @contextmanager
    def inside(self, scope: Scope) -> Generator[None]:
        self.scopes.append(scope)
        yield
        self.scopes.pop()

    def point_masks(self) -> Iterable[Var]:
        return (s.mask for s in self.scopes if s.mask is not None)


def guarded(kernel: Kernel, pads: bool) -> frozenset[Expr]:
    """What reads memory that only a guard may allow it to, itself or by its arguments; all loads,
    if points are counted for axes that may be empty (`pads`)."""
    if not pads and not any(isinstance(n, Choose) for n in kernel.nodes):
        return frozenset()
    found: set[Expr] = set()
    at_ends = _read_at(kernel, is_last=False) & _read_at(kernel, is_last=True)
    for node in kernel.nodes:
        is_loose = isinstance(node, Load) and (pads or node not in at_ends or not _is_dense(node))
        if is_loose or any(a in found for a in node.args):
            found.add(node)
    return frozenset(found)


def _is_dense(load: Load) -> bool:
    """Is every element between the first and the last one of the load read by it? What is read at
    both is then never out of its operand, however that lies in memory. A gathered row may be, and
    one that is not there must be reported only where it is read."""
    last: DimLike = 0
    for axis, coefficient in load.at.terms:
        last = last + coefficient * (axis.extent - 1)
    count = product(a.extent for a, _ in load.at.terms)
    is_forward = all(provably_le(0, c) for _, c in load.at.terms)
    return not load.args and is_forward and last + 1 == count


def _read_at(kernel: Kernel, *, is_last: bool) -> set[Expr]:
    """What guards let the kernel compute at the first point of all axes, or at the last."""
    found: set[Expr] = set()
    stack = [s.value for s in kernel.stores]
    while stack:
        node = stack.pop()
        if node not in found:
            found.add(node)
            stack += _taken(node, is_last) if isinstance(node, Choose) else node.args
    return found


def _taken(node: Choose, is_last: bool) -> Sequence[Expr]:
    guard, yes, no = node.args
    if not isinstance(guard, Inside):
        return [guard]
    at = guard.at.offset
    for axis, coefficient in guard.at.terms if is_last else ():
        at = at + coefficient * (axis.extent - 1)
    if provably_le(guard.low, at) and provably_le(at + 1, guard.high):
        return [yes]
    is_outside = provably_le(at + 1, guard.low) or provably_le(guard.high, at)
    return [no] if is_outside else []
