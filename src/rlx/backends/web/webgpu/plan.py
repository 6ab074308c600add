"""An artefact as the JSON that a page runs: routines, kernels, and the memory of weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlx.backends.gpu.device import ALIGN
from rlx.backends.gpu.runtime.routine import (
    AnyStep,
    Artefact,
    BranchStep,
    CallStep,
    CopyStep,
    Place,
    ScanStep,
    WhileStep,
    as_bytes,
    launches_in,
)
from rlx.backends.web.webgpu.kernels import Kernels
from rlx.backends.web.webgpu.steps import check_runs_alone, is_straight, routine_json
from rlx.backends.web.weights import WeightsFile
from rlx.core.dim import evaluate, symbols_of
from rlx.core.extent import ceiling
from rlx.ir.interpret import infer_binding
from rlx.ops.op import Array

SLAB_BYTES = 256 << 20
"""Of a GPU buffer, by WebGPU's default limit."""
Json = dict[str, Any]


def plan_json(
    artefact: Artefact,
    params: Mapping[str, Array],
    file: WeightsFile,
    usual: Mapping[str, int],
) -> Json:
    """A program with its params, whose bytes are put into a file; `usual` are sizes of named dims
    that a page prepares for when it loads."""
    check_runs_alone(artefact.routines.values())
    sizes = infer_binding(artefact.interface.params, params)
    kernels = Kernels.of(artefact.codes)
    return {
        "main": artefact.main,
        "features": sorted(kernels.features),
        "symbols": list(artefact.symbols),
        "capacities": list(artefact.capacities),
        "failures": [[label, list(texts)] for label, texts in artefact.failures],
        "tables": _tables(artefact),
        "usualSizes": _usual(artefact, {**sizes, **usual}),
        **_memory(artefact, params, sizes, file),
        "accesses": kernels.accesses,
        "texts": kernels.texts,
        "codes": kernels.codes,
        "routines": {name: routine_json(r) for name, r in artefact.routines.items()},
    }


def _tables(artefact: Artefact) -> Json:
    """Where the arena has measured sizes and failures; its first bytes are what buffers without
    elements are bound to."""
    failures = ALIGN + _rounded(8 * len(artefact.symbols))
    return {
        "sizes": ALIGN,
        "failures": failures,
        "end": failures + _rounded(4 * len(artefact.failures)),
    }


def _usual(artefact: Artefact, known: Mapping[str, int]) -> Mapping[str, int] | None:
    """Sizes at which a call can be tried with zeros: nothing where one is not known, or where what
    a call does depends on its data."""
    names = {s.name for leaf in artefact.interface.inputs for s in symbols_of(leaf.shape.dims)}
    is_tried = is_straight(artefact.routines[artefact.main]) and names <= known.keys()
    return {n: known[n] for n in sorted(names)} if is_tried else None


# -- memory ---------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Slab:
    """A GPU buffer of params."""

    is_kept: bool
    size: int = 0


def _memory(
    artefact: Artefact, params: Mapping[str, Array], sizes: Mapping[str, int], file: WeightsFile
) -> Json:
    """GPU buffers, where params are in them, and where all bytes are in the file. The first one has
    constants and what the prologue makes; params that nothing else reads are freed after it."""
    weights = max(1, evaluate(ceiling(artefact.weight_bytes), sizes))
    slabs, places = [_Slab(True, _rounded(weights))], list[list[int]]()
    entries: list[list[int]] = []
    used = _params_of_calls(artefact)
    for number, leaf in enumerate(artefact.interface.params):
        raw = _raw(params[leaf.name])
        slab = _slab_for(slabs, len(raw), number in used)
        at = slabs[slab].size
        slabs[slab].size += _rounded(max(1, len(raw)))
        places.append([slab, at])
        entries.append([slab, at, file.add(raw), len(raw)])
    for constant in artefact.constants:
        raw = _raw(constant.value)
        entries.append([0, evaluate(constant.offset, sizes), file.add(raw), len(raw)])
    return {
        "slabs": [{"bytes": s.size, "isKept": s.is_kept} for s in slabs],
        "params": places,
        "entries": [e for e in entries if e[-1]],
    }


def _slab_for(slabs: list[_Slab], size: int, is_kept: bool) -> int:
    """The last slab of its kind, if there is room in it, or a new one; never the first."""
    for number in range(len(slabs) - 1, 0, -1):
        slab = slabs[number]
        if slab.is_kept == is_kept:
            if slab.size + size <= SLAB_BYTES:
                return number
            break
    slabs.append(_Slab(is_kept))
    return len(slabs) - 1


def _params_of_calls(artefact: Artefact) -> set[int]:
    """The params, by number, that steps of calls read."""
    main = artefact.routines[artefact.main]
    places = (p for step in main.steps for p in _places(step) if p.space == "external")
    return {p.index - main.num_inputs for p in places}


def _places(step: AnyStep) -> Iterator[Place]:
    for launch in launches_in(step):
        yield from launch.places
    match step:
        case CopyStep():
            yield step.source
        case CallStep() | WhileStep() | ScanStep():
            yield from step.operands
        case BranchStep():
            yield step.condition
            yield from step.operands
        case _:
            return


def _raw(array: Array) -> bytes:
    return as_bytes(np.asarray(array)).tobytes()


def _rounded(size: int) -> int:
    return -(-size // ALIGN) * ALIGN
