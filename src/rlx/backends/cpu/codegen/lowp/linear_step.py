"""The sizes of x[…, k] · W[n, k]ᵀ, whatever W is packed as."""

from __future__ import annotations

from dataclasses import dataclass

from rlx.backends.cpu.program.task import Step
from rlx.core.dim import DimLike, product
from rlx.core.layout import Layout


@dataclass(frozen=True, slots=True)
class LinearStep:
    """x[m, k] · W[n, k]ᵀ: x's leading axes are the m rows."""

    step: Step

    @property
    def lead(self) -> Layout:
        """The result's axes but the last."""
        made = self.step.results[0]
        return Layout(made.dims[:-1], made.strides[:-1], made.offset)

    @property
    def m(self) -> DimLike:
        return product(self.lead.dims)

    @property
    def n(self) -> DimLike:
        return self.step.results[0].dims[-1]

    @property
    def k(self) -> DimLike:
        return self.step.operands[0].dims[-1]
