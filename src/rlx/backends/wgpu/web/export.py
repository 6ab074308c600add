"""A planned model as a folder for browsers: plans, kernels, weights, the runtime, a page."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlx._version import __version__
from rlx.backends.gpu.backend import GpuBackend
from rlx.backends.wgpu.web import bundle
from rlx.backends.wgpu.web.plan import plan_json
from rlx.backends.wgpu.web.weights import WeightsFile
from rlx.core.dim import Dim
from rlx.core.errors import Error, UnsupportedError
from rlx.core.files import writing
from rlx.core.shape import Shape
from rlx.ir.interface import Interface
from rlx.ir.json_form import dim_json
from rlx.ir.lir import LirModule
from rlx.ops.op import Array

FORMAT = 1
"""Of the files, which `js/model.js` reads."""
DTYPES = frozenset({
    "f32", "f16", "bf16", "i64", "u64", "i32", "u32", "i16", "u16", "i8", "u8", "bool",
})  # fmt: skip
"""That JavaScript has arrays of, or whose bits it takes."""


@dataclass(frozen=True, slots=True)
class Exported:
    """The files that were written, with their sizes."""

    folder: Path
    files: Mapping[str, int]

    @property
    def num_bytes(self) -> int:
        return sum(self.files.values())


def export(
    planned: Mapping[str, tuple[LirModule, GpuBackend]],
    params: Mapping[str, Array],
    folder: Path,
    usual: Mapping[str, int],
) -> Exported:
    """Write a folder that a browser runs: a model that is planned for kinds of adapters, by name,
    with what compiles for them: "gpu", and "software" if adapters that are the host's processor
    have a plan of their own."""
    lir, _ = planned["gpu"]
    interface = Interface.planned(lir)
    _check(interface, params)
    file = WeightsFile()
    plans = {
        kind: plan_json(backend.build(backend.program(lir)), params, file, usual)
        for kind, (lir, backend) in planned.items()
    }
    manifest = {
        "format": FORMAT,
        "generator": f"rlx {__version__}",
        "name": interface.name,
        "inputs": [_value(n.name, n.shape) for n in interface.inputs],
        "outputs": [_value(name, shape) for name, shape in interface.outputs],
        "names": _names(interface),
        "plans": {kind: f"{kind}.json" for kind in plans},
    }
    return _written(folder, manifest, plans, file)


def _check(interface: Interface, params: Mapping[str, Array]) -> None:
    missing = [n.name for n in interface.params if n.name not in params]
    if missing:
        raise Error(
            f"{interface.name}: the model brings no weights for {', '.join(missing[:3])}"
            f"{' and others' * (len(missing) > 3)}, and a page has to have all of them. Give a "
            "model with its weights."
        )
    values = [*((n.name, n.shape) for n in interface.inputs), *interface.outputs]
    for name, shape in values:
        if shape.dtype.value not in DTYPES:
            raise UnsupportedError(
                f"{interface.name}: {name!r} is {shape}, and JavaScript has no arrays of "
                f"{shape.dtype.value}. Cast it in the model."
            )


def _value(name: str, shape: Shape) -> dict[str, Any]:
    dims = list(map(dim_json, shape.dims))
    return {"name": name, "dtype": shape.dtype.value, "dims": dims, "shape": str(shape)}


def _names(interface: Interface) -> dict[str, list[int | None]]:
    """The least and the greatest size of each named dim of the inputs."""
    symbols = [s for n in interface.inputs for s in n.shape.dynamic_symbols]
    return {s.name: [s.min or 0, _most(s)] for s in symbols}


def _most(dim: Dim) -> int | None:
    return dim.max


def _written(
    folder: Path, manifest: Mapping[str, Any], plans: Mapping[str, Any], file: WeightsFile
) -> Exported:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Error(f"{folder} cannot be made: {error.strerror}") from None
    weights = file.write(folder)
    texts = {
        "model.json": _json({**manifest, "weights": weights}),
        **{f"{kind}.json": _json(plan) for kind, plan in plans.items()},
        **bundle.texts(),
    }
    for name, text in texts.items():
        with writing(folder / name) as out:
            out.write(text.encode())
    sizes = {name: len(text.encode()) for name, text in texts.items()}
    return Exported(folder, {**sizes, weights["file"]: weights["bytes"]})


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)
