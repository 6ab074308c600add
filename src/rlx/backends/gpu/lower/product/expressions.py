"""Expressions of contractions as nodes: factors, sums and what follows them.

A form of product opens the axes of a factor at the points that a thread does, asks for the values
there, and gives the finished sums back to be stored. Elements of constants can be requested before
the kernels before this one are waited for, and are converted when they are used.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence

from rlx.backends.gpu.lower.elementwise import cast, is_native
from rlx.backends.gpu.lower.expressions import failure_text, gathers
from rlx.backends.gpu.lower.hoisted import HoistedIndices
from rlx.backends.gpu.lower.loop import index_dtype_of
from rlx.backends.gpu.lower.scopes import Scope, Values, guarded
from rlx.core.dim import product
from rlx.kernel.contract import Contract, through
from rlx.kernel.decompose import decomposed
from rlx.kernel.expr import (
    Affine,
    Apply,
    Axis,
    Expr,
    Kernel,
    Load,
    Store,
    postorder,
)
from rlx.kernel.program.schedule import Buffer
from rlx.kernel.reciprocal import by_reciprocals
from rlx.kernel.refusal import Refusal
from rlx.kernel.structure import structure_of
from rlx.program.builder import Builder
from rlx.program.values import Var


def legal_product(contract: Contract) -> Contract | Refusal:
    """The contraction in ops that GPUs have, or why no form of product takes it."""
    wide = {n.dtype for n in (contract.left, *contract.rights)} | {contract.sums}
    if not all(d.is_float or d.is_integer for d in wide):
        return Refusal(f"{contract.name}: its products are not of floats or integers")
    if contract.columns in contract.left.free or any(
        contract.rows in x.free for x in contract.rights
    ):
        return Refusal(f"{contract.name}: a factor varies with rows and columns")
    moving = {a for a in contract.outer if a.extent != 1}
    if any(not moving <= s.at.axes for s in contract.stores):
        return Refusal(f"{contract.name}: a result is smaller than the product")
    return through(contract, lambda k: by_reciprocals(decomposed(k, is_native)))


def whole(contract: Contract) -> Kernel:
    """All expressions of a contraction, as a kernel that is only read."""
    factors = [Store(-1, Affine(), x) for x in (contract.left, *contract.rights)]
    axes = (*contract.outer, *contract.inner)
    shapes = contract.operands, contract.results
    return Kernel(contract.name, axes, (*factors, *contract.stores), *shapes)


def structure_of_product(contract: Contract) -> Hashable:
    """Contractions of equal structure compute the same, from and to the same places."""
    return len(contract.batch), contract.sums, structure_of(whole(contract))


class ProductExpressions(HoistedIndices):
    """The values of a contraction's expressions at the points that scopes open."""

    def __init__(
        self,
        builder: Builder,
        contract: Contract,
        constants: Iterable[int],
        vector: Axis | None,
        index_bits: int,
    ) -> None:
        kernel = whole(contract)
        counts = [
            product(a.extent for a in contract.batch),
            contract.rows.extent,
            contract.columns.extent,
            product(a.extent for a in contract.inner),
        ]
        index = index_dtype_of(kernel, counts, index_bits)
        super().__init__(builder, kernel, index, vector, frozenset(constants))
        self.contract, self.constants = contract, frozenset(constants)
        self.guarded = guarded(kernel, pads=False)

    # -- factors ---------------------------------------------------------------------------------

    def request(self, factor: Expr, *, is_early: bool = False) -> None:
        """Load the elements that a factor needs here, and do not use them yet. Before the kernels
        before this one are waited for (`is_early`), those of constants only."""
        for node in postorder([factor]):
            if not isinstance(node, Load) or node.args or node in self.guarded:
                continue
            if not all(self.is_open(a) for a in node.free):
                continue
            if is_early and node.operand not in self.constants:
                continue
            self.request_load(node)

    def is_open(self, axis: Axis) -> bool:
        return any(axis in s.index for s in self.scopes)

    def factor(self, factor: Expr) -> Values:
        """The values as numbers of the sums' dtype; zeros at points that are none."""
        sums = self.contract.sums
        values = [cast(self.b, v, sums) for v in self.value(factor)]
        first = self.place(factor, ()) + 1 if is_zero_of_zeros(factor) else 0
        mask = self._mask(first)
        return values if mask is None else [v.where(mask, 0) for v in values]

    def _mask(self, first: int) -> Var | None:
        """Is it a point of the scopes from the first on? Elements are loaded in the scope that
        they belong to, as its mask and those around it allow."""
        total: Var | None = None
        for mask in (s.mask for s in self.scopes[first:] if s.mask is not None):
            total = mask if total is None else total & mask
        return total

    def multiplied(self, total: Var, x: Var, y: Var) -> Var:
        """total + x · y."""
        return self.b.fma(x, y, total) if total.dtype.is_float else total + x * y

    # -- sums ------------------------------------------------------------------------------------

    def store_sums(self, *parts: Values) -> None:
        """The stores of the points that are open, one sum of each part for each neighbour."""
        for node in self.contract.accumulators:
            scope = self.scopes[self.place(node, ())]
            scope.known[node, ()] = [cast(self.b, t, node.dtype) for t in parts[node.part]]
        for store in self.contract.stores:
            self.store(store.result, store.at, self.value(store.value), self.masks(()))

    # -- points ----------------------------------------------------------------------------------

    def open_points(self, axes: Sequence[Axis], flat: Var) -> dict[Axis, Values]:
        """The axes at a flat position, the last the fastest."""
        return self.opened(axes, flat, 1) if axes else {}

    def scope(self, index: dict[Axis, Values], mask: Var | None = None) -> Scope:
        return Scope(self.b.depth, index, mask)


def is_zero_of_zeros(factor: Expr) -> bool:
    """Is it 0 where its elements are not loaded?"""
    while isinstance(factor, Apply) and factor.op.name == "cast":
        (factor,) = factor.args
    return isinstance(factor, Load) and not factor.args


def failures_of(contract: Contract) -> tuple[str, ...]:
    return tuple(failure_text(n) for n in gathers(whole(contract)))


def names_of(every: Sequence[Buffer]) -> tuple[str, ...]:
    kinds = {"operand": "x", "result": "y"}
    return tuple(f"{kinds[b.kind]}{b.index}" for b in every)
