"""The pass context: target, options, and the decision log of one compile."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rlx.cost.decision import DecisionLog
from rlx.cost.target import FusionLimits, FusionTarget, Target
from rlx.passes.options import DispatchPolicy, FusionOptions
from rlx.rules.engine import Event

if TYPE_CHECKING:
    from rlx.cost.gate import IoFusionGate
    from rlx.cost.terms import Terms


@dataclass(frozen=True, slots=True)
class Context:
    """One compile: passes read it and write only to its logs."""

    target: Target
    options: FusionOptions
    log: DecisionLog
    rewrites: list[Event] = field(default_factory=list[Event])
    """Every rule that fired, or nearly did."""

    @classmethod
    def of(
        cls, target: FusionTarget | Target | str, options: FusionOptions | None = None
    ) -> Context:
        """A fresh context with an empty log."""
        chosen, asked = Target.of(target), options or FusionOptions()
        return cls(chosen, asked, DecisionLog(chosen, asked.force, asked.sizes))

    @property
    def limits(self) -> FusionLimits:
        """What a region may hold: the caller's limits, or the target's."""
        return self.options.limits or self.target.limits

    @property
    def at_end(self) -> Collection[str] | None:
        """The outputs that are asked for at the end; None where phases follow from ops."""
        return self.options.at_end

    @property
    def dispatch(self) -> DispatchPolicy:
        return self.options.policy

    @property
    def terms(self) -> Terms:
        """What nodes cost on the target, remembered for the whole compile."""
        return self.log.terms

    @property
    def gate(self) -> IoFusionGate:
        return self.target.gate
