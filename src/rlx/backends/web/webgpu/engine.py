"""The engine on WebGPU: a plan for GPUs, and one for adapters that are the host's processor."""

from __future__ import annotations

from collections.abc import Mapping

from rlx.backends.gpu.backend import GpuBackend
from rlx.backends.web.engine import Part, json_bytes
from rlx.backends.web.webgpu.plan import plan_json
from rlx.backends.web.weights import WeightsFile
from rlx.ir.interface import Interface
from rlx.ir.lir import LirModule
from rlx.ops.op import Array


def webgpu_part(
    planned: Mapping[str, tuple[LirModule, GpuBackend]],
    params: Mapping[str, Array],
    file: WeightsFile,
    usual: Mapping[str, int],
) -> Part:
    """Of a model that is planned for kinds of adapters, with what compiles for them: "gpu", and
    "software" if adapters that are the host's processor have a plan of their own."""
    lir, _ = planned["gpu"]
    plans = {
        kind: plan_json(backend.build(backend.program(lir)), params, file, usual)
        for kind, (lir, backend) in planned.items()
    }
    files = {f"{kind}.json": json_bytes(plan) for kind, plan in plans.items()}
    facts = {"plans": {kind: f"{kind}.json" for kind in plans}}
    return Part(Interface.planned(lir), facts, files)
