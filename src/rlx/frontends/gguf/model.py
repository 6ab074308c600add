"""A language model read from a .gguf file: `rlx.load("model.gguf")`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from rlx.core.errors import Error, UnsupportedError
from rlx.core.params import Params
from rlx.frontends.block_model import BlockModel
from rlx.frontends.gguf.architecture import Architecture, architecture_of
from rlx.frontends.gguf.caches import CacheFormat, CacheKind
from rlx.frontends.gguf.decoder import WINDOW_STEP, Builder, decoder, embedder
from rlx.frontends.gguf.neutral_keys import deny_unread_keys
from rlx.frontends.gguf.reader import GgufFile
from rlx.frontends.gguf.source import language_model_file

UNUSED = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")
"""Tensors that are read with the metadata."""


class GgufModel(BlockModel):
    """A decoder of a file."""

    def __init__(
        self, file: GgufFile, architecture: Architecture, build: Builder, context: int
    ) -> None:
        super().__init__(build.module, Params.reading(build.params))
        self.file, self.architecture, self.context = file, architecture, context

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The file's key-value pairs."""
        return self.file.metadata

    def embedder(self) -> GgufModel:
        """The states of tokens instead of logits, without caches."""
        build = embedder(self.name, self.architecture, self.file, self.context)
        return GgufModel(self.file, self.architecture, build, self.context)

    def __repr__(self) -> str:
        a = self.architecture
        return f"<GgufModel {self.name!r}: {a.name}, {a.layers} layers of {a.width}>"


def load(
    path: Path,
    context: int | None = None,
    *,
    at_most: int | None = None,
    caches: CacheKind = "arguments",
    cached: CacheFormat = "f32",
    window_step: int = WINDOW_STEP,
) -> GgufModel:
    """The model of a file, for contexts of up to `context` tokens: if not given, as many as it was
    trained on, and `at_most` so many. Its caches are arguments of calls, or of a session.

    Where a model has other rotary frequencies for long sequences (longrope), a call takes those of
    its length. Sequences that come in several calls, as those of a session do and those with
    `at_most`, take those of the context, which `at_most` ends where the short ones do."""
    file = language_model_file(path)
    a = architecture_of(file)
    if context is not None and not 1 <= context <= a.context:
        raise Error(
            f"{path}: its context is {a.context:,} tokens, not {context:,}. Ask for at most that."
        )
    wanted = context or min(a.context, at_most or a.context)
    if a.rotary.trained is not None and (at_most is not None or caches == "session"):
        wanted = context or (wanted if at_most is None else min(wanted, a.rotary.trained))
        a = replace(a, rotary=a.rotary.for_context(wanted))
    build = decoder(path.stem, a, file, wanted, caches, cached, window_step)
    _check_used(file, build)
    deny_unread_keys(file, a.name)
    return GgufModel(file, a, build, wanted)


def _check_used(file: GgufFile, build: Builder) -> None:
    """A tensor that nothing uses is a part of the model that would be missing."""
    rest = [n for n in file.tensors if n not in build.params and n not in UNUSED]
    if rest:
        more = f" and {len(rest) - 3} more" if len(rest) > 3 else ""
        raise UnsupportedError(
            f"{file.name}: rlx does not know what to do with {', '.join(rest[:3])}{more}."
        )
