"""Loading and saving models: the format follows from the name of the file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rlx.core.arguments import COUNT, NONE, WHOLE, takes
from rlx.core.errors import Error, UnsupportedError
from rlx.core.files import path_of, writing

if TYPE_CHECKING:
    import os

    from rlx.frontends.onnx.model import Model
    from rlx.frontends.safetensors.model import FolderModel
    from rlx.ir.hir import HirModule
    from rlx.ir.lir import LirModule
    from rlx.ir.mir import Graph, MirModule
    from rlx.runtime.executable import Executable

_LATER = {".gguf": "GGUF models"}
_KNOWN = "It loads .onnx models, folders of safetensors, .ir and .lir text, and .rlx programs."


@takes(threads=NONE | COUNT, device=NONE | WHOLE)
def load(
    path: str | os.PathLike[str], *, threads: int | None = None, device: int | None = None
) -> Model | FolderModel | MirModule | HirModule | LirModule | Executable:
    """The model at `path`: an `.onnx` file gives a Model, which `rlx.compile` takes, and so does a
    folder with config.json and model.safetensors of the BERT family; `.ir` text gives a MirModule
    or a HirModule, a `.lir` file the LirModule that was planned, a `.rlx` file that `exe.save`
    wrote the Executable, with `threads` and `device` as `rlx.compile` takes them.

    Nothing in an `.onnx`, `.safetensors`, `.ir` or `.lir` file is run, nor believed. Weights are
    copied into memory, once: what happens to the file afterwards changes nothing.

    A `.rlx` file holds machine code, and loading it is running it: load only one that you trust.
    """
    file = path_of(path)
    kind = file.suffix.lower()
    if kind in _LATER:
        raise UnsupportedError(f"{file}: rlx cannot load {_LATER[kind]} yet. {_KNOWN}")
    if file.is_dir():
        return _folder(file)
    match kind:
        case ".safetensors":
            return _folder(_folder_of(file))
        case ".onnx":
            return _model(file)
        case ".ir":
            return _module(file)
        case ".lir":
            return _planned(file)
        case ".rlx":
            return _program(file, threads, device)
        case _:
            raise UnsupportedError(f"{file}: rlx does not know {kind or 'this'!r} files. {_KNOWN}")


def save(
    model: Graph | MirModule | HirModule | LirModule | Executable, path: str | os.PathLike[str]
) -> None:
    """Write what `load` reads: the text of a graph or module to `.ir`, a planned module to `.lir`,
    a compiled program with its weights to `.rlx`. The file is written whole, or not at all."""
    from rlx.ir.hir import HirModule
    from rlx.ir.lir import LirModule
    from rlx.ir.mir import Graph, MirModule
    from rlx.runtime.executable import Executable

    match model:
        case Executable():
            model.save(path)
        case LirModule():
            from rlx.plan.lir_text import lir_text

            _write(path, lir_text(model))
        case Graph() | MirModule() | HirModule():
            _write(path, str(model))
        case _:  # pyright: ignore[reportUnnecessaryComparison]
            raise Error(
                f"cannot save a {type(model).__name__}. Give a Graph, a MirModule, a HirModule, a "
                "LirModule or an Executable."
            )


def _write(path: str | os.PathLike[str], text: str) -> None:
    with writing(path) as file:
        file.write(text.encode())


def _model(file: Path) -> Model:
    from rlx.frontends.onnx.model import load

    return load(file)


def _folder(folder: Path) -> FolderModel:
    from rlx.frontends.safetensors.model import load

    return load(folder)


def _folder_of(file: Path) -> Path:
    """Weights alone are no model: config.json beside them says which."""
    from rlx.frontends.safetensors.model import WEIGHTS

    if not file.is_file():
        raise Error(f"{file} cannot be read: it is no file.")
    if file.name != WEIGHTS:
        raise UnsupportedError(f"{file}: rlx loads folders, where weights are in {WEIGHTS}.")
    return file.parent


def _module(file: Path) -> MirModule | HirModule:
    from rlx.ir.text import read_module

    return read_module(_text(file), file.name)


def _planned(file: Path) -> LirModule:
    from rlx.runtime.lir_file import read_lir

    return read_lir(_text(file), file.name)


def _program(file: Path, threads: int | None, device: int | None) -> Executable:
    from rlx.runtime.artefact_file import read

    return read(file, threads, device)


def _text(file: Path) -> str:
    try:
        return file.read_bytes().decode()
    except UnicodeDecodeError as error:
        raise Error(f"{file} is not UTF-8 text: {error.reason} at byte {error.start}.") from None
    except (OSError, ValueError) as error:
        raise Error(f"{file} cannot be read: {error}.") from None
