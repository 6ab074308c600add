"""Loading a model from a file, by what its name says it is."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rlx.errors import Error, UnsupportedError

if TYPE_CHECKING:
    import os

    from rlx.ir.hir import HirModule
    from rlx.ir.mir import MirModule
    from rlx.runtime.executable import Executable

_LATER = {
    ".onnx": "ONNX models",
    ".gguf": "GGUF models",
    ".safetensors": "safetensors weights",
}
_KNOWN = "It loads .ir text and .rlx programs."


def load(
    path: str | os.PathLike[str], *, threads: int | None = None
) -> MirModule | HirModule | Executable:
    """The model in the file at `path`: `.ir` text gives a MirModule or a HirModule, a `.rlx` file
    that `exe.save` wrote the Executable, with `threads` as `rlx.compile` takes them.

    A `.rlx` file holds machine code, and loading it is running it: load only one that you trust.
    """
    file = Path(path)
    kind = file.suffix.lower()
    if kind in _LATER:
        raise UnsupportedError(f"{file}: rlx cannot load {_LATER[kind]} yet. {_KNOWN}")
    if file.is_dir():
        raise UnsupportedError(f"{file} is a folder: rlx cannot load those yet. {_KNOWN}")
    if kind not in (".ir", ".rlx"):
        raise UnsupportedError(f"{file}: rlx does not know {kind or 'this'!r} files. {_KNOWN}")
    return _module(file) if kind == ".ir" else _program(file, threads)


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
