"""Where a language model is read from: a .gguf file, or a folder of safetensors."""

from __future__ import annotations

from pathlib import Path

from rlx.frontends.gguf.reader import GgufFile, read_gguf


def language_model_file(path: Path) -> GgufFile:
    """The metadata and the tensors of a language model."""
    if not path.is_dir():
        return read_gguf(path)
    from rlx.frontends.gguf.folder import read_folder

    return read_folder(path)


def is_language_model_file(path: Path) -> bool:
    """Is it one of those, as far as its name or its configuration says?"""
    if not path.is_dir():
        return path.suffix == ".gguf"
    from rlx.frontends.gguf.folder import is_language_model

    return is_language_model(path)
