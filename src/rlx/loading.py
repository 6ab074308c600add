"""Loading a model from a file, by what its name says it is."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rlx.errors import Error, UnsupportedError

if TYPE_CHECKING:
    import os

    from rlx.ir.hir import HirModule
    from rlx.ir.mir import MirModule
    from rlx.onnx.model import Model
    from rlx.runtime.executable import Executable

_LATER = {
    ".gguf": "GGUF models",
    ".safetensors": "safetensors weights",
}
_KNOWN = "It loads .onnx models, .ir text and .rlx programs."


def load(
    path: str | os.PathLike[str], *, threads: int | None = None
) -> Model | MirModule | HirModule | Executable:
    """The model in the file at `path`: an `.onnx` file gives a Model, which `rlx.compile` takes,
    `.ir` text a MirModule or a HirModule, a `.rlx` file that `exe.save` wrote the Executable, with
    `threads` as `rlx.compile` takes them.

    Nothing in an `.onnx` file is run, nor believed. Large weights stay in the file and are read
    where they are used: do not cut it short meanwhile.

    A `.rlx` file holds machine code, and loading it is running it: load only one that you trust.
    """
    file = Path(path)
    kind = file.suffix.lower()
    if kind in _LATER:
        raise UnsupportedError(f"{file}: rlx cannot load {_LATER[kind]} yet. {_KNOWN}")
    if file.is_dir():
        raise UnsupportedError(f"{file} is a folder: rlx cannot load those yet. {_KNOWN}")
    match kind:
        case ".onnx":
            return _model(file)
        case ".ir":
            return _module(file)
        case ".rlx":
            return _program(file, threads)
        case _:
            raise UnsupportedError(f"{file}: rlx does not know {kind or 'this'!r} files. {_KNOWN}")


def _model(file: Path) -> Model:
    from rlx.onnx.model import load

    return load(file)


def _module(file: Path) -> MirModule | HirModule:
    from rlx.ir.text import read_module

    return read_module(_text(file), file.name)


def _program(file: Path, threads: int | None) -> Executable:
    from rlx.runtime.artefact_file import read

    return read(file, threads)


def _text(file: Path) -> str:
    try:
        return file.read_bytes().decode()
    except UnicodeDecodeError as error:
        raise Error(f"{file} is not UTF-8 text: {error.reason} at byte {error.start}.") from None
    except (OSError, ValueError) as error:
        raise Error(f"{file} cannot be read: {error}.") from None
