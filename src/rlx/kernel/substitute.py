"""Kernels over other sizes: every dim of a form replaced, in extents, strides, offsets and bounds.

Operands and results are flat: how many elements they have is all that a kernel asks of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TypeVar

from rlx.core.dim import DimLike
from rlx.core.layout import Layout
from rlx.core.shape import Shape
from rlx.kernel.attention import Attention, Bias, Mask, Past, Positional, Rotary, Visibility
from rlx.kernel.contract import Contract
from rlx.kernel.expr import Affine, Axis, Expr, Exprs, Inside, Kernel, Load, Reduce, Size
from rlx.kernel.program.forms import Conv
from rlx.kernel.rewrite import Rewriter

Change = Callable[[DimLike], DimLike]
Sized = TypeVar("Sized", bound=Kernel | Contract | Conv | Attention)


def with_dims(kernel: Sized, change: Change) -> Sized:
    """The same kernel with other dims."""
    return _Substitution(change).form(kernel)


@dataclass(slots=True)
class _Substitution:
    change: Change
    axes: dict[Axis, Axis] = field(default_factory=dict[Axis, Axis])
    exprs: Exprs = field(default_factory=Exprs)

    def form(self, kernel: Sized) -> Sized:
        match kernel:
            case Kernel():
                return self._loops(kernel)
            case Contract():
                return self._contract(kernel)
            case Conv():
                return replace(kernel, contract=self._contract(kernel.contract))
            case Attention():
                return self._attention(kernel)

    def _loops(self, kernel: Kernel) -> Kernel:
        rewriter = self._rewriter()
        return Kernel(
            kernel.name,
            tuple(map(self.axis, kernel.axes)),
            tuple(map(rewriter.store, kernel.stores)),
            self._shapes(kernel.operands),
            self._shapes(kernel.results),
        )

    def _contract(self, contract: Contract) -> Contract:
        rewriter = self._rewriter()
        return Contract(
            contract.name,
            tuple(map(self.axis, contract.batch)),
            self.axis(contract.rows),
            self.axis(contract.columns),
            tuple(map(self.axis, contract.inner)),
            rewriter(contract.left),
            rewriter(contract.right),
            contract.sums,
            tuple(map(rewriter.store, contract.stores)),
            self._shapes(contract.operands),
            self._shapes(contract.results),
            tuple(map(rewriter, contract.more)),
        )

    def _attention(self, form: Attention) -> Attention:
        return replace(
            form,
            q=self._layout(form.q),
            k=self._layout(form.k),
            v=self._layout(form.v),
            out=self._layout(form.out),
            mask=self._mask(form.mask),
            operands=self._shapes(form.operands),
            results=self._shapes(form.results),
            past=self._past(form.past),
            rotary=self._rotary(form.rotary),
        )

    def _past(self, past: Past | None) -> Past | None:
        return None if past is None else Past(self._layout(past.k), self._layout(past.v))

    def _rotary(self, rotary: Rotary | None) -> Rotary | None:
        if rotary is None:
            return None
        return replace(rotary, cos=self._layout(rotary.cos), sin=self._layout(rotary.sin))

    def _mask(self, mask: Mask) -> Mask:
        match mask:
            case None:
                return None
            case Positional():
                return replace(mask, offset=self.change(mask.offset))
            case Visibility() | Bias():
                return replace(mask, layout=self._layout(mask.layout))

    # -- parts -----------------------------------------------------------------------------------

    def axis(self, axis: Axis) -> Axis:
        if axis not in self.axes:
            self.axes[axis] = Axis(axis.name, self.change(axis.extent))
        return self.axes[axis]

    def _affine(self, at: Affine) -> Affine:
        terms = ((self.axis(a), self.change(c)) for a, c in at.terms)
        return Affine(tuple((a, c) for a, c in terms if c != 0), self.change(at.offset))

    def _layout(self, layout: Layout) -> Layout:
        dims, strides = (tuple(map(self.change, d)) for d in (layout.dims, layout.strides))
        return Layout(dims, strides, self.change(layout.offset))

    def _shapes(self, shapes: tuple[Shape, ...]) -> tuple[Shape, ...]:
        return tuple(Shape((self.change(s.num_elements),), s.dtype) for s in shapes)

    def _rewriter(self) -> Rewriter:
        return Rewriter(self.exprs, self._affine, rule=self._expr)

    def _expr(self, node: Expr, args: list[Expr], exprs: Exprs) -> Expr | None:
        """Nodes with dims beside their index map; the others are rebuilt as they are."""
        match node:
            case Size():
                return exprs.size(self.change(node.dim), node.dtype)
            case Inside():
                low, high = self.change(node.low), self.change(node.high)
                return exprs.inside(self._affine(node.at), low, high)
            case Load(args=(_,)):
                stride, bound = self.change(node.stride), self.change(node.bound)
                at = self._affine(node.at)
                return exprs.gather(node.operand, at, node.dtype, args[0], stride, bound)
            case Reduce():
                return exprs.reduce(node.fold, self.axis(node.axis), args[0])
            case _:
                return None
