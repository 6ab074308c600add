"""torch, eager or compiled by inductor with frozen weights."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from bench.dialects import for_torch
from bench.dialects.for_torch import torch
from bench.peers import Runner, listed
from bench.workload import Workload


def module_of(workload: Workload) -> Any:
    """The workload as a torch module that holds its weights."""
    plain = {k: k.replace(".", "_") for k in workload.params}

    class Held(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            for name, own in plain.items():
                weight = torch.nn.Parameter(
                    torch.tensor(workload.params[name]), requires_grad=False
                )
                self.register_parameter(own, weight)

        def forward(self, *inputs: Any) -> Any:
            params = {name: getattr(self, own) for name, own in plain.items()}
            return workload.function(for_torch, params, *inputs)

    return Held().eval()


def prepare(
    workload: Workload, threads: int, *, compiles: bool, precision: str | None = None
) -> Runner:
    torch.set_num_threads(threads)
    module: Any = module_of(workload)
    inputs = [torch.tensor(a) for a in workload.inputs]
    if precision == "bf16":
        module = module.bfloat16()
        inputs = [t.bfloat16() if t.is_floating_point() else t for t in inputs]
    if compiles:
        settings: Any = import_module("torch._inductor.config")
        settings.freezing = True
        module = torch.compile(module, dynamic=False)

    def call() -> Any:
        with torch.inference_mode():
            return module(*inputs)

    return Runner(call, lambda made: [_plain(t).numpy() for t in listed(made)])


def _plain(made: Any) -> Any:
    """As NumPy has it, which has no bf16."""
    return made.float() if made.dtype == torch.bfloat16 else made
