"""Where a language model is read from: a .gguf file, or a folder of safetensors."""

from __future__ import annotations

from pathlib import Path

from rlx.core.errors import UnsupportedError
from rlx.core.files import opened
from rlx.frontends.gguf.reader import MAGIC, GgufFile, read_gguf

_AS_TENSORS = "As a program of tensors it runs: rlx run, rlx serve, rlx.compile."
OTHERS = {
    ".onnx": _AS_TENSORS, ".pt2": _AS_TENSORS, ".rlx": _AS_TENSORS, ".ir": _AS_TENSORS,
    ".lir": _AS_TENSORS, ".safetensors": "Weights alone are no model: give their folder.",
    ".bin": "A pickle is not read: save the model as safetensors, and give the folder.",
}  # fmt: skip
"""What to do with files of other kinds."""


def language_model_file(path: Path) -> GgufFile:
    """The metadata and the tensors of a language model."""
    if not path.is_dir():
        _check_kind(path)
        return read_gguf(path)
    from rlx.frontends.gguf.folder import read_folder

    return read_folder(path)


def _check_kind(path: Path) -> None:
    """A file of another kind is not a damaged one."""
    kind = path.suffix.lower()
    if kind == ".gguf" or not path.is_file() or bytes(opened(path)[: len(MAGIC)]) == MAGIC:
        return
    raise UnsupportedError(
        f"{path} is no language model that rlx knows: those are .gguf files, and folders with "
        f"config.json and safetensors. {OTHERS.get(kind, 'Give one of them.')}"
    )


def is_language_model_file(path: Path) -> bool:
    """Is it one of those, as far as its name or its configuration says?"""
    if not path.is_dir():
        return path.suffix == ".gguf"
    from rlx.frontends.gguf.folder import is_language_model

    return is_language_model(path)
