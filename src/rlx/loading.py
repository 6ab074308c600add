"""Loading a model from a file, by what its name says it is."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rlx.errors import Error, UnsupportedError

if TYPE_CHECKING:
    import os

    from rlx.ir.hir import HirModule
    from rlx.ir.mir import MirModule

_LATER = {
    ".onnx": "ONNX models",
    ".gguf": "GGUF models",
    ".safetensors": "safetensors weights",
    ".rlx": "compiled artefacts",
}


def load(path: str | os.PathLike[str]) -> MirModule | HirModule:
    """The model in the file at `path`: so far `.ir` text, of MIR or of HIR."""
    from rlx.ir.text import read_module

    file = Path(path)
    kind = file.suffix.lower()
    if kind in _LATER:
        raise UnsupportedError(f"{file}: rlx cannot load {_LATER[kind]} yet. It loads .ir text.")
    if file.is_dir():
        raise UnsupportedError(f"{file} is a folder: rlx cannot load those yet. It loads .ir text.")
    if kind != ".ir":
        raise UnsupportedError(f"{file}: rlx does not know {kind or 'this'!r} files. It loads .ir.")
    return read_module(_text(file), file.name)


def _text(file: Path) -> str:
    try:
        return file.read_bytes().decode()
    except UnicodeDecodeError as error:
        raise Error(f"{file} is not UTF-8 text: {error.reason} at byte {error.start}.") from None
    except (OSError, ValueError) as error:
        raise Error(f"{file} cannot be read: {error}.") from None
