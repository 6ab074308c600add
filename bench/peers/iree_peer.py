"""IREE: what JAX traces, compiled ahead of time for this machine with the weights as constants."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np

from bench.dialects.for_jax import jax, jnp
from bench.peers import Runner, listed
from bench.peers.jax_peer import traced
from bench.workload import Workload

FLAGS = (
    "--iree-llvmcpu-target-cpu=host",
    "--iree-opt-level=O3",
    "--iree-opt-data-tiling=true",
    "--iree-llvmcpu-loop-vectorization",
    "--iree-llvmcpu-slp-vectorization",
    "--iree-llvmcpu-stack-allocation-limit=1048576",
)


def prepare(workload: Workload, threads: int) -> Runner:
    name, code = _compiled(workload)
    rt: Any = import_module("iree.runtime")
    rt.flags.parse_flags(f"--task_topology_group_count={threads}")
    config = rt.Config("local-task")
    context = rt.SystemContext(config=config)
    context.add_vm_module(rt.VmModule.copy_buffer(context.instance, code))
    main = context.modules[name].main
    given = [rt.asdevicearray(config.device, a) for a in traced(workload)[2]]
    return Runner(lambda: main(*given), lambda made: [np.array(a.to_host()) for a in listed(made)])


def _compiled(workload: Workload) -> tuple[str, bytes]:
    """The module's name and its code."""
    function, params, inputs = traced(workload)
    held = {k: jnp.asarray(v) for k, v in params.items()}
    lowered = jax.jit(lambda *given: function(held, *given)).lower(*inputs)
    module = lowered.compiler_ir("stablehlo")
    written: Any = import_module("jax._src.interpreters.mlir").module_to_bytecode(module)
    compiler: Any = import_module("iree.compiler.tools")
    how = {"input_type": "stablehlo", "target_backends": ["llvm-cpu"], "extra_args": list(FLAGS)}
    code = compiler.compile_str(written, **how)
    return module.operation.attributes["sym_name"].value, code
