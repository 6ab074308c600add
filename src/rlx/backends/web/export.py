"""A model as a folder for browsers: what engines need, the weights, the runtime, a page."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlx._version import __version__
from rlx.backends.web import bundle
from rlx.backends.web.engine import Json, MakePart, Part, json_bytes
from rlx.backends.web.weights import WeightsFile
from rlx.core.dim import Dim
from rlx.core.errors import Error, UnsupportedError
from rlx.core.files import writing
from rlx.core.shape import Shape
from rlx.ir.interface import Interface
from rlx.ir.interpret import infer_binding
from rlx.ir.json_form import dim_json
from rlx.ops.op import Array

FORMAT = 2
"""Of the files, which `js/model.js` reads. It rises with every change of what they hold, as pages
may keep an older `rlx.js`, and folders are dropped on pages of other ones."""
ENGINES = {"webgpu": "WebGPU", "wasm": "WebAssembly"}
"""By the names of options: what computes. A page tries them in this order."""
OWN_FILES = frozenset({
    "gpu.json", "software.json", "webgpu.js",
    "wasm.json", "program.wasm", "program-relaxed.wasm", "wasm.js",
})  # fmt: skip
"""Those of single engines: an export removes what it does not write."""
DTYPES = frozenset({
    "f64", "f32", "f16", "bf16", "i64", "u64", "i32", "u32", "i16", "u16", "i8", "u8", "bool",
})  # fmt: skip
"""That JavaScript has arrays of, or whose bits it takes."""


@dataclass(frozen=True, slots=True)
class Exported:
    """The files that were written, with their sizes, and why engines are left out that cannot run
    the model."""

    folder: Path
    files: Mapping[str, int]
    refused: Mapping[str, str]

    @property
    def num_bytes(self) -> int:
        return sum(self.files.values())


def export(engines: Mapping[str, MakePart], params: Mapping[str, Array], folder: Path) -> Exported:
    """Write a folder for those of the engines that can run the model."""
    parts, refused, weights = _parts(engines)
    if not parts:
        raise _nowhere(refused)
    interface = next(iter(parts.values())).interface
    manifest = {
        "format": FORMAT,
        "generator": f"rlx {__version__}",
        "name": interface.name,
        "inputs": [_value(n.name, n.shape) for n in interface.inputs],
        "outputs": [_value(name, shape) for name, shape in interface.outputs],
        "names": _names(interface),
        "weightSizes": infer_binding(interface.params, params),
        "engines": {name: part.facts for name, part in parts.items()},
        "refused": refused,
    }
    return _written(folder, manifest, parts, weights)


def _parts(
    engines: Mapping[str, MakePart],
) -> tuple[dict[str, Part], dict[str, str], WeightsFile]:
    """What each engine needs, or why it cannot run the model, and the weights of all."""
    parts: dict[str, Part] = {}
    refused: dict[str, str] = {}
    weights = WeightsFile()
    for name, make in engines.items():
        tried = weights.copy()
        try:
            parts[name] = make(tried)
        except UnsupportedError as error:
            refused[name] = str(error)
        else:
            weights = tried
    return parts, refused, weights


def _nowhere(refused: Mapping[str, str]) -> UnsupportedError:
    if len(refused) == 1:
        return UnsupportedError(*refused.values())
    return UnsupportedError(". ".join(f"{ENGINES[n]}: {r.rstrip('.')}" for n, r in refused.items()))


def check(interface: Interface, params: Mapping[str, Array]) -> None:
    """Refuse what no engine can do: weights that are not there, values that JavaScript has not."""
    missing = [n.name for n in interface.params if n.name not in params]
    if missing:
        raise Error(
            f"{interface.name}: the model brings no weights for {', '.join(missing[:3])}"
            f"{' and others' * (len(missing) > 3)}, and a page has to have all of them. Give a "
            "model with its weights."
        )
    if interface.states:
        raise UnsupportedError(
            f"{interface.name}: it keeps state {interface.states[0].name!r} from call to call, and "
            "exported models have no sessions. Give it as an input, and return what it becomes."
        )
    values = [*((n.name, n.shape) for n in interface.inputs), *interface.outputs]
    for name, shape in values:
        if shape.dtype.value not in DTYPES:
            raise UnsupportedError(
                f"{interface.name}: {name!r} is {shape}, and JavaScript has no arrays of "
                f"{shape.dtype.value}. Cast it in the model."
            )


def _value(name: str, shape: Shape) -> Json:
    dims = list(map(dim_json, shape.dims))
    return {"name": name, "dtype": shape.dtype.value, "dims": dims, "shape": str(shape)}


def _names(interface: Interface) -> dict[str, list[int | None]]:
    """The least and the greatest size of each named dim of the inputs."""
    symbols = [s for n in interface.inputs for s in n.shape.dynamic_symbols]
    return {s.name: [s.min or 0, _most(s)] for s in symbols}


def _most(dim: Dim) -> int | None:
    return dim.max


def _written(
    folder: Path, manifest: Mapping[str, Any], parts: Mapping[str, Part], file: WeightsFile
) -> Exported:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Error(f"{folder} cannot be made: {error.strerror}") from None
    weights = file.write(folder)
    made = {"model.json": json_bytes({**manifest, "weights": weights})}
    made |= {name: raw for part in parts.values() for name, raw in part.files.items()}
    made |= {name: text.encode() for name, text in bundle.texts(tuple(parts)).items()}
    for name, raw in made.items():
        with writing(folder / name) as out:
            out.write(raw)
    for name in OWN_FILES - made.keys():
        (folder / name).unlink(missing_ok=True)
    sizes = {name: len(raw) for name, raw in made.items()}
    return Exported(folder, {**sizes, weights["file"]: weights["bytes"]}, manifest["refused"])
