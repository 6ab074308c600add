"""Kernels without their numbers: extents and strides as names, which kernels of other sizes share.

What runs once is worth no code of its own. A kernel that reduces or chooses stays specialised: in
what order it adds and where its loops are split follows from its sizes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from rlx.core.dim import Dim, DimLike
from rlx.kernel.expr import Affine, Apply, Axis, Const, Expr, Kernel, Load
from rlx.kernel.rewrite import rewritten


@dataclass(slots=True)
class _Names:
    """A name for every number as it is met, so that equal places of kernels have equal names."""

    sizes: dict[str, int] = field(default_factory=dict[str, int])
    axes: dict[Axis, Axis] = field(default_factory=dict[Axis, Axis])
    maps: dict[Affine, Affine] = field(default_factory=dict[Affine, Affine])

    def dim(self, value: DimLike) -> DimLike:
        """0 and 1 shape the code, so they stay."""
        if isinstance(value, Dim) or value in (0, 1):
            return value
        name = f"n{len(self.sizes)}"
        self.sizes[name] = value
        return Dim(name)

    def axis(self, axis: Axis) -> Axis:
        if axis not in self.axes:
            self.axes[axis] = Axis(axis.name, self.dim(axis.extent))
        return self.axes[axis]

    def map(self, at: Affine) -> Affine:
        if at not in self.maps:
            terms = tuple((self.axis(a), self.dim(c)) for a, c in at.terms)
            self.maps[at] = Affine(terms, self.dim(at.offset))
        return self.maps[at]


def generic(kernel: Kernel) -> tuple[Kernel, dict[str, int]]:
    """The kernel with names, and what they stand for here; itself and none where it must not."""
    if not all(map(_is_plain, kernel.nodes)) or not all(_numbers(kernel)):
        return kernel, {}
    names = _Names()
    axes = tuple(map(names.axis, kernel.axes))
    return rewritten(replace(kernel, axes=axes), move=names.map), names.sizes


def _is_plain(node: Expr) -> bool:
    return isinstance(node, Const | Apply) or (isinstance(node, Load) and not node.args)


def _numbers(kernel: Kernel) -> Iterable[bool]:
    """Is each number one that a size may be, and is there no empty axis?"""
    for axis in kernel.axes:
        yield not isinstance(axis.extent, Dim) and axis.extent > 0
    maps = [s.at for s in kernel.stores]
    maps += [n.at for n in kernel.nodes if isinstance(n, Load)]
    for at in maps:
        for value in (*(c for _, c in at.terms), at.offset):
            yield not isinstance(value, Dim) and value >= 0
