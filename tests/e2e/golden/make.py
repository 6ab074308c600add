"""How the seven targets' plans of two models differ, and why: `python -m tests.e2e.golden.make`."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import rlx
from bench.models import transformer, welch

PATH = Path(__file__).with_name("targets.txt")


def text() -> str:
    """Kernels, memory and decisions, target by target; layers alike are counted together."""
    models = {
        "transformer": lambda: transformer(
            2, 16, width=64, heads=4, kv_heads=2, ffn=96, policy=rlx.FusionPolicy.FUSABLE
        ).lower(),
        "welch": lambda: rlx.MirModule(welch(with_spectrum=False)),
    }
    return "\n".join(
        _section(name, target, rlx.CompilePipeline(target).compile(make()))
        for name, make in models.items()
        for target in rlx.FusionTarget
    )


def _section(name: str, target: rlx.FusionTarget, result: rlx.CompileResult) -> str:
    plan = result.lir.plan
    profile = rlx.profile_graph_io(result.lir, target=result.lir.target)
    lines = [
        f"== {name} on {target.value}",
        f"arena {plan.arena_bytes} bytes, weights {plan.weight_bytes} bytes, "
        f"{profile.kernel_launches} launches, {profile.sync_points} syncs, "
        f"{profile.device_traffic_bytes} bytes of traffic",
        *_kernels(plan),
        *_decisions(result),
    ]
    return "\n".join(lines) + "\n"


def _kernels(plan: rlx.BufferPlan) -> list[str]:
    lines = []
    for phase in rlx.Phase:
        names = [_kernel(n) for n in plan.schedule if plan.phase_of(n) is phase]
        lines += [f"  {phase.name.lower()} {n}x {k}" for k, n in Counter(names).items()]
    return lines


def _kernel(node: rlx.Node) -> str:
    """The op; of a region, what it holds."""
    if "body" not in node.attrs:
        return f"{node.op} {node.shapes[0]}"
    inner = Counter(n.op for n in node.attrs["body"].order() if not n.is_leaf and n.op != "item")
    held = " ".join(f"{op}*{n}" if n > 1 else op for op, n in inner.items())
    return f"{node.op}({held}) {node.shapes[0]}"


def _decisions(result: rlx.CompileResult) -> list[str]:
    told = Counter(
        f"{'took' if d.verdict else 'left'} {d.what}: {d.reason}" for d in result.decisions
    )
    return [f"  {n}x {line}" for line, n in told.items()]


if __name__ == "__main__":
    PATH.write_text(text(), encoding="utf-8")
    sys.stdout.write(f"wrote {PATH.name}\n")
