"""A planned model as WebAssembly: modules, and what a page must know to load and call them.

A page reads the entries of a file into one block of memory, the weights: params, constants, and
room for what the prologue makes of them. Everything else in memory is the page's own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlx.backends.cpu.isa import WASM, WASM_RELAXED, Isa
from rlx.backends.cpu.llvm.compile import joined, object_of
from rlx.backends.cpu.llvm.compile_units import Unit
from rlx.backends.cpu.llvm.multiply_add import RELAXED, without_relaxed
from rlx.backends.cpu.machine import CpuMachine
from rlx.backends.cpu.program.artefact import Artefact, artefact_of
from rlx.backends.cpu.program.build import built_units
from rlx.backends.cpu.program.call_context import NUM_WORDS, Mode, Word
from rlx.backends.cpu.runtime.blob import Blob
from rlx.backends.cpu.schedule.kernels import CpuKernels
from rlx.core.dim import evaluate
from rlx.core.errors import UnsupportedError
from rlx.core.extent import CAPACITY_EXCEEDED, FIRST_CAPACITY, is_capacity
from rlx.core.requirements import some_sizes
from rlx.ir.interface import Interface
from rlx.ir.interpret import infer_binding
from rlx.ir.lir import LirModule
from rlx.kernel.program.program import KernelProgram
from rlx.ops.op import Array
from rlx.pipeline import select_kernels

MAX_BYTES = 2 << 30
"""Of weights, so that as much is left of 4 GiB for calls."""
CONTEXT = (
    Word.MODE, Word.SYMBOLS, Word.NEEDS, Word.ARENA, Word.WEIGHTS, Word.EXTERNALS, Word.FAILED
)  # fmt: skip
"""The words that a page writes and reads."""
MODES = (Mode.NEED, Mode.PROLOGUE, Mode.CALL)
Json = dict[str, Any]
Add = Callable[[bytes], int]
"""Puts bytes into a file, and says where they are there."""


@dataclass(frozen=True, slots=True)
class WasmPlan:
    """The modules of a model by kind, and what is true of all of them: `simd` is what every browser
    runs, `relaxed` is faster where an engine has relaxed SIMD."""

    modules: Mapping[str, bytes]
    json: Json


def wasm_plan(lir: LirModule, params: Mapping[str, Array], add: Add) -> WasmPlan:
    """A model that is planned for target `cpu:wasm`, with its params, whose bytes are added to a
    file."""
    machine = CpuMachine.of(WASM_RELAXED, lir.target.machine)
    program = select_kernels(lir, CpuKernels(machine))
    _check_runs_alone(program)
    made, units = built_units(program, WASM_RELAXED)
    blobs = {"simd": _linked(units, WASM), "relaxed": _linked(units, WASM_RELAXED)}
    plan = _plan_json(program, artefact_of(made, blobs["simd"], ()), params)
    entries = [[at, add(raw), len(raw)] for at, raw in plan["entries"]]
    modules = {kind: blob.code for kind, blob in blobs.items()}
    return WasmPlan(modules, {**plan, "entries": entries})


def _linked(units: Sequence[tuple[Unit, bytes]], isa: Isa) -> Blob:
    """Units that have relaxed multiply-adds are compiled again for engines without."""
    objects = [
        data if isa.has_relaxed_fma or RELAXED not in unit.text
        else object_of(without_relaxed(unit.text), isa)
        for unit, data in units
    ]  # fmt: skip
    return joined(objects, isa)


def _check_runs_alone(program: KernelProgram) -> None:
    for node in program.hosts.values():
        raise UnsupportedError(
            f"{node.label}: the op {node.attrs['name']!r} is computed by Python, which a page does "
            "not have. Write it with ops of rlx, or leave it out of the model."
        )


def _plan_json(program: KernelProgram, artefact: Artefact, params: Mapping[str, Array]) -> Json:
    """What a page must know; of entries the bytes, which are in no file yet."""
    names = [s.name for s in artefact.symbols]
    sizes = infer_binding(artefact.interface.params, params)
    return {
        "symbols": names,
        "capacities": [n for n in names if is_capacity(n)],
        "firstCapacity": FIRST_CAPACITY,
        "failures": [[label, list(texts)] for label, texts in artefact.failures],
        "capacityExceeded": CAPACITY_EXCEEDED,
        "weightSizes": {**some_sizes(artefact.symbols, artefact.interface.required), **sizes},
        "numNeeds": _num_needs(artefact.interface),
        **_memory(program, artefact, params, sizes),
        "context": {"words": NUM_WORDS, **{w.name: w.value for w in CONTEXT}},
        "modes": {m.name: m.value for m in MODES},
    }


def _num_needs(interface: Interface) -> int:
    """Bytes of arena and weights, of each output its bytes and dims, of each input its dims, and
    whether sizes are out of range."""
    outputs = sum(1 + shape.rank for _, shape in interface.outputs)
    return 2 + outputs + sum(leaf.shape.rank for leaf in interface.inputs) + 1


# -- memory ---------------------------------------------------------------------------------------


def _memory(
    program: KernelProgram,
    artefact: Artefact,
    params: Mapping[str, Array],
    sizes: Mapping[str, int],
) -> Json:
    """Params are in the slots that the plan has for them; one without is read by nothing."""
    main, size = program.main, evaluate(program.weight_bytes, sizes)
    if size > MAX_BYTES:
        raise UnsupportedError(
            f"{artefact.interface.name}: its weights take {size:,} bytes, and WebAssembly has "
            "addresses of 32 bits. Use a model with half-precision or quantised weights."
        )
    entries = [(evaluate(c.offset, sizes), _raw(c.value)) for c in artefact.constants]
    places: list[int] = []
    for leaf, node in zip(artefact.interface.params, main.graph.params, strict=True):
        slot = main.plan.assignments.get(node)
        places.append(evaluate(main.weights_at + slot.offset, sizes) if slot else 0)
        entries += [(places[-1], _raw(params[leaf.name]))] if slot else []
    found = [(at, raw) for at, raw in entries if raw]
    return {"weightBytes": size, "params": places, "entries": found}


def _raw(array: Array) -> bytes:
    return np.ascontiguousarray(array).tobytes()
