"""Pooling of sentence-transformers: one vector for each text."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rlx.core.errors import Error, UnsupportedError
from rlx.frontends.safetensors.encoder import Encoded
from rlx.frontends.safetensors.reader import read_list, read_object
from rlx.frontends.tracked_fields import ANY, Neutral, TrackedFields
from rlx.ir.hir import HirModule
from rlx.ir.mir import Node

LEAST_TOKENS = 1e-9
LEAST_NORM = 1e-12
FAR_BELOW = -1e9
"""What a token that is not there counts as when the largest is taken."""
_PREFIX = "pooling_mode_"
NEUTRAL: Neutral = {"word_embedding_dimension": ANY, "include_prompt": (True,)}
"""Fields of a pooling that change nothing: rows have their width, and masks say what is pooled."""


def sentence(folder: Path, encoded: Encoded) -> Node | None:
    """The vector of each text, where modules.json says that there is one."""
    path = folder / "modules.json"
    if not path.is_file():
        return None
    kinds = [_kind(entry, path) for entry in read_list(path)]
    if not kinds or kinds[0][0] != "Transformer":
        raise UnsupportedError(f"{path}: rlx reads those that begin with a Transformer.")
    made: Node | None = None
    for kind, place in kinds[1:]:
        with encoded.build.module.scope(kind):
            made = _applied(folder / place, kind, encoded, made)
    return made


def _kind(entry: Mapping[str, Any], where: Path) -> tuple[str, str]:
    """The last word of a module's type, and its folder, which is one of this one's own."""
    kind, place = entry.get("type"), entry.get("path")
    if not isinstance(kind, str) or not isinstance(place, str):
        raise Error(f"{where}: a module has no type or no path.")
    if place and not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}", place):
        raise Error(f"{where}: {place[:80]!r} is not a folder inside the model's.")
    return kind.rpartition(".")[2][:80], place


def _applied(place: Path, kind: str, encoded: Encoded, made: Node | None) -> Node:
    if kind == "Pooling" and made is None:
        return _pooled(place / "config.json", encoded)
    if kind == "Normalize" and made is not None:
        return _normalised(encoded.build.module, made)
    raise UnsupportedError(f"{place}: rlx does not support the module {kind!r}.")


def _pooled(path: Path, encoded: Encoded) -> Node:
    config = TrackedFields(read_object(path), str(path))
    modes = [k.removeprefix(_PREFIX) for k in config if k.startswith(_PREFIX) and config[k]]
    config.deny_unread([NEUTRAL], "Pool with sentence-transformers.")
    for mode in modes:
        if mode not in MODES:
            known = ", ".join(MODES)
            raise UnsupportedError(f"{path}: mode {mode[:80]!r}. rlx reads {known}.")
    if not modes:
        raise Error(f"{path} names no pooling mode.")
    m = encoded.build.module
    weight = m.expand_dims(m.cast(encoded.mask, to="f32"), axes=(2,))
    # sentence-transformers joins the vectors of several modes in this order
    vectors = [made(m, encoded.rows, weight) for mode, made in MODES.items() if mode in modes]
    return _joined(m, vectors)


def _joined(m: HirModule, vectors: Sequence[Node]) -> Node:
    return vectors[0] if len(vectors) == 1 else m.concat(list(vectors), axis=1)


def _first(m: HirModule, rows: Node, weight: Node) -> Node:
    """The row of the first token, which stands for the text."""
    del weight
    return m.gather(rows, 0, axis=1)


def _largest(m: HirModule, rows: Node, weight: Node) -> Node:
    return m.max(m.where(m.not_equal(weight, 0.0), rows, FAR_BELOW), axes=(1,))


def _mean(m: HirModule, rows: Node, weight: Node) -> Node:
    total, count = _sums(m, rows, weight)
    return m.div(total, count)


def _mean_by_root(m: HirModule, rows: Node, weight: Node) -> Node:
    total, count = _sums(m, rows, weight)
    return m.div(total, m.sqrt(count))


def _sums(m: HirModule, rows: Node, weight: Node) -> tuple[Node, Node]:
    count = m.clamp(m.sum(weight, axes=(1,)), min=LEAST_TOKENS)
    return m.sum(m.mul(rows, weight), axes=(1,)), count


def _normalised(m: HirModule, x: Node) -> Node:
    """x over its length; a vector of zeros stays one."""
    norm = m.sqrt(m.sum(m.square(x), axes=(-1,), keepdims=True))
    return m.div(x, m.clamp(norm, min=LEAST_NORM))


MODES: dict[str, Callable[[HirModule, Node, Node], Node]] = {
    "cls_token": _first, "max_tokens": _largest, "mean_tokens": _mean,
    "mean_sqrt_len_tokens": _mean_by_root,
}  # fmt: skip
