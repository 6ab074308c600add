"""The decision log: every choice a compile makes, as a value with its reason and predicted gain.

A pass proposes a candidate; the gate, or the caller's `force`, gives the verdict, which is
recorded.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, replace

from rlx.core.dtype import DType
from rlx.core.public_calls import public_class
from rlx.core.units import flops_text, size_text, time_text
from rlx.cost.gate import FusionBenefit, is_dominating
from rlx.cost.layout_cost import NO_COST, LayoutCost
from rlx.cost.stable_id import Identities
from rlx.cost.target import Target
from rlx.cost.terms import Terms
from rlx.ir.mir import Node
from rlx.ir.outline import place_of

KINDS = {
    "rule": "an identity that rewrote the graph",
    "lowering": "an op decomposed into simpler ones, as the target has no kernel for it",
    "fusion": "several nodes as one kernel",
    "kernel": "which kernel runs a step, or why a kernel is not there",
    "layout": "the memory layout of a value, and whether it is copied",
    "in_place": "a result written over an operand at its last use, or into a state",
    "phase": "work done when parameters are set, instead of on every call",
    "precision": "the dtype that arithmetic is done in",
    "schedule": "how a kernel is parallelised, and by which tiles",
    "capacity": "storage for an unbounded size, grown at run time",
    "sharding": "which part of a value each device of a mesh has",
    "cut": "where a call leaves native code",
    "output": "which of two outputs is read back",
    "import": "what the front end decided while importing the model",
}
"""Every kind of decision."""


@public_class
@dataclass(frozen=True, slots=True)
class Decision:
    """One choice: what was considered where, the verdict, why, and what it should save."""

    id: str
    """Stable: made of structure and origin names, not of the order of passes."""
    what: str
    """The rule or pass that proposed it, such as `fuse_matmul_bias_act`."""
    where: tuple[str, ...]
    """The nodes concerned, by the user's names."""
    verdict: bool
    reason: str
    predicted_ns: float = 0.0
    bytes_saved: int = 0
    launches_saved: int = 0
    is_reversible: bool = True
    """Can `force` reverse it? Not where the opposite would be wrong or impossible."""
    kind: str = "fusion"
    """One of `KINDS`."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A rewrite put to the gate: the nodes it replaces, and what that saves."""

    what: str
    nodes: tuple[Node, ...]
    """The nodes it would replace."""
    benefit: FusionBenefit
    flops_delta: int = 0
    """Arithmetic added, in flops at the peak rate; negative where it is saved."""
    working_set_bytes: int = 0
    """Selects the cache level at whose bandwidth the traffic is priced."""
    where: tuple[str, ...] = ()
    """Names to show instead of the nodes' own."""
    layout_savings: LayoutCost = NO_COST
    """What the change of layouts saves in the kernels that read and write them."""
    kind: str = "fusion"
    why: str = ""
    """What the change is good for, stated before what it saves."""
    is_reversible: bool = True
    """Is the verdict carried out, so that `force` may reverse it? Advice is not."""


class DecisionLog:
    """The decisions of one compile, in order. A proposal about the same nodes is recorded once."""

    def __init__(
        self,
        target: Target,
        force: Mapping[str, bool] | None = None,
        sizes: Mapping[str, int] | None = None,
    ) -> None:
        self.target = target
        self.terms = Terms(target, sizes=sizes)
        self._force = dict(force or {})
        self._identities = Identities()
        self._decisions: dict[str, Decision] = {}

    @property
    def decisions(self) -> tuple[Decision, ...]:
        """All but the rules that fired: those are in a compile's `rewrites`."""
        return tuple(d for d in self._decisions.values() if d.kind != "rule")

    @property
    def unused_force(self) -> tuple[str, ...]:
        """Ids in `force` without effect: no such decision, or one that cannot be reversed."""
        held = self._decisions
        return tuple(k for k in self._force if k not in held or not held[k].is_reversible)

    def decide(self, candidate: Candidate) -> Decision:
        """The verdict on `candidate`: the caller's if forced, else the gate's."""
        verdict, reason, gain_ns = self._weigh(candidate)
        benefit, why = candidate.benefit, candidate.why
        return self._record(candidate.nodes, Decision(
            "", candidate.what, candidate.where, verdict, _because(why, verdict, reason),
            gain_ns,
            benefit.device_traffic_bytes_saved
            + benefit.host_readback_bytes_saved
            + candidate.layout_savings.sequential_bytes
            + candidate.layout_savings.transposed_bytes,
            benefit.launches_saved + candidate.layout_savings.launches,
            candidate.is_reversible, candidate.kind,
        ))  # fmt: skip

    def choose(
        self, what: str, nodes: Sequence[Node], verdict: bool, reason: str, *, kind: str = "fusion"
    ) -> Decision:
        """A choice that is not the gate's but could go either way: `force` may reverse it."""
        return self._record(nodes, Decision("", what, (), verdict, reason, kind=kind))

    def rewrites(self, rule: str, identity: str, node: Node) -> Decision:
        """A rule that applies at `node`: taken, unless `force` reverses it."""
        return self._record((node,), Decision("", rule, (), True, identity, kind="rule"))

    def note(
        self,
        what: str,
        nodes: Node | Sequence[Node],
        verdict: bool,
        reason: str,
        *,
        predicted_ns: float = 0.0,
        bytes_saved: int = 0,
        launches_saved: int = 0,
        kind: str = "fusion",
    ) -> Decision:
        """A decision without an alternative: recorded, not reversible."""
        given = (nodes,) if isinstance(nodes, Node) else nodes
        return self._record(given, Decision(
            "", what, (), verdict, reason, predicted_ns, bytes_saved, launches_saved, False, kind
        ))  # fmt: skip

    def refuse(
        self, what: str, nodes: Node | Sequence[Node], reason: str, *, kind: str = "fusion"
    ) -> Decision:
        """A rewrite that was considered and is not possible."""
        return self.note(what, nodes, False, reason, kind=kind)

    def gain_ns(self, candidate: Candidate) -> float:
        """What a candidate should save: the gate's score at the bandwidth of the cache that holds
        its working set, less the time its added arithmetic takes."""
        machine = self.target.machine
        memory_gb_s = machine.memory_gb_s(candidate.working_set_bytes)
        gate = replace(machine.gate, memory_gb_s=memory_gb_s)
        dtype = _dtype(candidate.nodes)
        compute_ns = candidate.flops_delta / machine.gflops(dtype)
        layout_ns = candidate.layout_savings.ns(machine, candidate.working_set_bytes, dtype)
        return gate.score_ns(candidate.benefit) + layout_ns - compute_ns

    def _weigh(self, candidate: Candidate) -> tuple[bool, str, float]:
        gain_ns, least_ns = self.gain_ns(candidate), self._least_ns(candidate)
        if is_dominating(
            candidate.benefit, -candidate.flops_delta, *astuple(candidate.layout_savings)
        ):
            return True, f"saves {_savings(candidate)}, and costs nothing", gain_ns
        if gain_ns >= least_ns:
            return True, f"saves {time_text(gain_ns)}", gain_ns
        if gain_ns > 0:
            least = f"less than the threshold of {time_text(least_ns)}"
            return False, f"would save {time_text(gain_ns)}, {least}", gain_ns
        return False, f"would cost {time_text(-gain_ns)} more", gain_ns

    def _least_ns(self, candidate: Candidate) -> float:
        """The gain that is asked: of a layout, which makes no new kernel, any."""
        least_ns = self.target.gate.min_gain_ns
        return min(least_ns, 1.0) if candidate.kind == "layout" else least_ns

    def _record(self, nodes: Sequence[Node], proposal: Decision) -> Decision:
        """Give `proposal` its id and place, and the forced verdict if there is one.

        An accepted decision stays; a refused one is priced again when it is proposed again.
        """
        key = self._identities.id_of(proposal.what, nodes, self._is_refused)
        known = self._decisions.get(key)
        if known and (known.verdict or not proposal.is_reversible):
            return known
        where = proposal.where or tuple(dict.fromkeys(map(place_of, nodes)))
        made = replace(proposal, id=key, where=where)
        if made.is_reversible and key in self._force:
            made = replace(made, verdict=self._force[key], reason="forced")
        self._decisions[key] = made
        return made

    def _is_refused(self, key: str) -> bool:
        return not self._decisions[key].verdict


def _because(why: str, verdict: bool, reason: str) -> str:
    """What a change is good for, and what its price makes of that."""
    if not why:
        return reason
    return f"{why}; {reason}" if verdict else f"{why}, but it {reason}"


def _dtype(nodes: Iterable[Node]) -> DType:
    """The dtype the arithmetic is in: that of the last node's result."""
    return next((n.shapes[0].dtype for n in reversed(list(nodes))), DType.F32)


def _savings(candidate: Candidate) -> str:
    benefit, layout = candidate.benefit, candidate.layout_savings
    sizes = [
        (benefit.device_traffic_bytes_saved, "memory traffic"),
        (benefit.host_readback_bytes_saved, "readback"),
        (layout.sequential_bytes, "copies"),
        (layout.transposed_bytes, "transposes"),
        (layout.reload_bytes, "reloads"),
    ]
    flops = layout.flops - candidate.flops_delta
    parts = [
        *_counted(benefit.launches_saved + layout.launches, "launch", "launches"),
        *_counted(benefit.sync_points_saved, "synchronisation", "synchronisations"),
        *(f"{size_text(n)} of {what}" for n, what in sizes if n),
        *([flops_text(flops)] if flops else []),
    ]
    return " and ".join([*([", ".join(parts[:-1])] if parts[1:] else []), *parts[-1:]])


def _counted(count: int, one: str, many: str) -> list[str]:
    return [f"{count:,} {one if count == 1 else many}"] if count else []
