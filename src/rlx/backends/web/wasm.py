"""The engine on WebAssembly: modules of the CPU backend, and how they are called."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from importlib.util import find_spec

from rlx.backends.web.engine import Json, Part, json_bytes
from rlx.backends.web.weights import WeightsFile
from rlx.core.errors import UnsupportedError
from rlx.ir.interface import Interface
from rlx.ir.lir import LirModule
from rlx.ops.op import Array

FILES = {"simd": "program.wasm", "relaxed": "program-relaxed.wasm"}
"""By the vector instructions that they use: those of every browser, and those with which newer ones
fuse multiplications and additions."""


def wasm_part(lir: LirModule, params: Mapping[str, Array], file: WeightsFile) -> Part:
    """Of a model that is planned for the instruction set `wasm`."""
    if find_spec("llvmlite") is None:
        raise UnsupportedError("LLVM makes WebAssembly: pip install 'rlx[cpu]'.")
    from rlx.backends.cpu.wasm.export import wasm_plan

    plan = wasm_plan(lir, params, file.add)
    modules = _different(plan.modules)
    stated = {kind: _stated(FILES[kind], module) for kind, module in modules.items()}
    files = {FILES[kind]: module for kind, module in modules.items()}
    facts = {"plan": "wasm.json", "modules": stated}
    return Part(Interface.planned(lir), facts, {"wasm.json": json_bytes(plan.json), **files})


def _different(modules: Mapping[str, bytes]) -> dict[str, bytes]:
    """Without the one of newer instructions where the model has no use for them."""
    return {k: m for k, m in modules.items() if k == "simd" or m != modules["simd"]}


def _stated(name: str, module: bytes) -> Json:
    return {"file": name, "bytes": len(module), "sha256": hashlib.sha256(module).hexdigest()}
