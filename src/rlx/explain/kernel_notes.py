"""What a backend says of the steps of a plan: how each runs, and why."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rlx.backends.base import Missing, Runner
from rlx.core.errors import Error
from rlx.core.units import time_text
from rlx.cost.calibrate import processor_name
from rlx.plan.alternatives import SPLIT

if TYPE_CHECKING:
    from rlx.backends.base import Backend, StepFacts, Steps
    from rlx.cost.decision import Decision
    from rlx.ir.lir import LirModule
    from rlx.passes.options import FusionOptions


def steps_of(lir: LirModule, options: FusionOptions, backend: Backend | None = None) -> Steps:
    """Step → how its target's backend runs it, at the sizes asked for: the one that is given, else
    as it is by default; nothing where none is there to be asked."""
    own = backend or _found(lir.target.name)
    asked = _at(lir, options.sizes)
    return {} if own is None else _priced(own.description(asked), asked, own)


def runner_of(target: str, backend: Backend | None = None) -> Runner:
    """What runs a plan here: the backend that is given, else what its target takes; NumPy, where
    that cannot run and models are not refused."""
    own = backend or _found(target)
    if own is None:
        return Runner("nothing", why=f"nothing runs it here: target {target!r} is not installed")
    if backend is not None or own.has_devices:
        return own.runner()
    never = own.why_never_here()
    missing = Missing(never) if never else own.missing()
    if missing is None:
        return own.runner()
    why = f"{missing.reason}{f': {missing.command}' if missing.command else ''}"
    if own.is_default:
        return Runner("NumPy", why=why, is_target=False)
    return Runner("nothing", why=f"nothing runs it here: {why}")


def machine_of(runner: Runner) -> dict[str, Any]:
    """This machine, and how many threads of it a call uses; 0 where another device computes."""
    return {
        "processor": processor_name(),
        "cores": os.cpu_count() or 1,
        "system": f"{platform.system()} {platform.machine()}",
        "threads": runner.threads,
    }


def _found(name: str) -> Backend | None:
    from rlx.backends.registry import find_backend
    from rlx.core.disk_cache import Cache

    try:
        return find_backend(name).configured("", None, Cache.of(None, os.environ))
    except Error:
        return None


def _at(lir: LirModule, sizes: Mapping[str, int]) -> LirModule:
    """The same plan, described at these sizes of named dims."""
    usual = lir.plan.representative
    known = {name: sizes.get(name, size) for name, size in usual.items()}
    return lir if known == usual else replace(lir, plan=lir.plan.at(known))


def _priced(steps: Steps, lir: LirModule, backend: Backend) -> Steps:
    """Steps with what parallelising them gains, where that is possible."""
    from rlx.explain.pricing import Prices

    can = [
        n for n, f in steps.items() if any(d.what == SPLIT and d.is_reversible for d in f.decisions)
    ]
    prices = Prices.at(lir.target, backend.num_threads, backend.calibrated)
    gains = prices.gains_of_splitting(can, lir.plan.representative)
    return {n: _with_gain(f, gains.get(n, 0.0)) for n, f in steps.items()}


def _with_gain(facts: StepFacts, gain: float) -> StepFacts:
    return replace(
        facts,
        decisions=tuple(priced_split(d, gain) if d.what == SPLIT else d for d in facts.decisions),
    )


def priced_split(made: Decision, gain: float) -> Decision:
    """The verdict is of the schedule's estimate of its own loops, the price of the roofline. Where
    that speaks against the verdict there is no price, as the estimate is known as a number of tasks
    alone, and the reason has both."""
    if (gain > 0) == made.verdict or not gain:
        return replace(made, predicted_ns=gain)
    what = "save" if gain > 0 else "cost"
    other = f"by bytes and FLOP alone it would {what} {time_text(abs(gain))}"
    return replace(made, reason=f"{made.reason}, as its loops are estimated; {other}")
