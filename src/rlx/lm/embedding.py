"""Embeddings: one vector of unit length for a text, pooled from the states of its tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from rlx.core.errors import UnsupportedError
from rlx.frontends.gguf.model import GgufModel
from rlx.ops.op import Array

NONE, MEAN, FIRST, LAST = range(4)
"""Kinds of pooling in files; the mean where a file names none."""


class Embedder:
    """A decoder without its head, compiled when it is first used."""

    def __init__(self, model: GgufModel, compiled: Callable[[GgufModel], Any]) -> None:
        self._model, self._compiled = model, compiled
        self._key = f"{model.architecture.name}.pooling_type"
        self._pooling = model.metadata.get(self._key)

    @cached_property
    def executable(self) -> Any:
        return self._compiled(self._model.embedder())

    def embed(self, tokens: Sequence[int]) -> Array:
        states = self.executable(np.array([tokens], np.int64))[0].astype(np.float64)
        pooled = self._pooled(states)
        return (pooled / max(np.linalg.norm(pooled), 1e-12)).astype(np.float32)

    def _pooled(self, states: Array) -> Array:
        if self._pooling not in (None, NONE, MEAN, FIRST, LAST):
            raise UnsupportedError(
                f"{self._model.file.name}: {self._key} is {self._pooling!r:.60}. rlx pools by the "
                f"mean ({MEAN}), the first ({FIRST}) or the last token ({LAST})."
            )
        if self._pooling == FIRST:
            return states[0]
        return states[-1] if self._pooling == LAST else states.mean(axis=0)
