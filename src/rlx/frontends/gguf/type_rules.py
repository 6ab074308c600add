"""Which block format each tensor of a quantised file has.

A mixture is one format for most matrices, and finer ones for those whose errors matter most: the
head, values of attention, and second matrices of feed-forward networks, in some layers. Mixtures
are llama.cpp's, so that a file of a name has the size and quality that this name has elsewhere.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from rlx.core.errors import UnsupportedError
from rlx.ops.quant.gguf_formats import SCHEMES

Rule: TypeAlias = Callable[["Place"], str | None]


@dataclass(frozen=True, slots=True)
class Place:
    """A layer of so many, in a model where so many query heads share a key head."""

    layer: int
    layers: int
    sharing: int

    def is_among_first(self, part: int) -> bool:
        return self.layer < self.layers // part

    @property
    def has_more_bits(self) -> bool:
        """The first and the last eighth, and every third of the layers between."""
        first = self.layers // 8
        is_end = self.layer < first or self.layer >= 7 * self.layers // 8
        return is_end or (self.layer - first) % 3 == 2


@dataclass(frozen=True, slots=True)
class Mixture:
    """A name's formats: `base`, and by part of a layer what is finer."""

    base: str
    number: int
    """Of the mixture in `general.file_type`."""
    parts: Mapping[str, Rule] = field(default_factory=dict[str, Rule])
    head: str = "q6_k"


def _always(scheme: str) -> Rule:
    return lambda place: scheme


def _more_bits(scheme: str) -> Rule:
    return lambda place: scheme if place.has_more_bits else None


def _among_first(part: int, scheme: str, rest: str | None = None) -> Rule:
    return lambda place: scheme if place.is_among_first(part) else rest


def _before(layer: int, scheme: str, rest: str | None = None) -> Rule:
    return lambda place: scheme if place.layer < layer else rest


def _sharing(scheme: str, rest: str | None = None) -> Rule:
    return lambda place: scheme if place.sharing >= 4 else rest


_IQ4 = {"attn_v": _sharing("q5_k"), "ffn_down": _among_first(8, "q5_k")}
_THIRDS = {"attn_v": _more_bits("q6_k"), "ffn_down": _more_bits("q6_k")}
MIXTURES: Mapping[str, Mixture] = {
    "F32": Mixture("f32", 0, head="f32"),
    "F16": Mixture("f16", 1, head="f16"),
    "BF16": Mixture("bf16", 32, head="bf16"),
    "Q8_0": Mixture("q8_0", 7, head="q8_0"),
    "Q4_0": Mixture("q4_0", 2),
    "Q4_1": Mixture("q4_1", 3),
    "Q5_0": Mixture("q5_0", 8),
    "Q5_1": Mixture("q5_1", 9),
    "IQ4_NL": Mixture("iq4_nl", 25, _IQ4),
    "IQ4_XS": Mixture("iq4_xs", 30, _IQ4),
    "MXFP4": Mixture("mxfp4", 38, head="q8_0"),
    "Q2_K": Mixture("q2_k", 10, {
        "attn_v": _sharing("q4_k", "q3_k"), "ffn_down": _always("q3_k"),
        "attn_output": _always("q3_k"),
    }),
    "Q3_K_S": Mixture("q3_k", 11),
    "Q3_K_M": Mixture("q3_k", 12, {
        "attn_v": _before(2, "q5_k", "q4_k"), "ffn_down": _among_first(16, "q5_k", "q4_k"),
        "attn_output": _always("q4_k"), "attn_qkv": _always("q4_k"),
    }),
    "Q3_K_L": Mixture("q3_k", 13, {
        **dict.fromkeys(("attn_v", "ffn_down", "attn_output"), _always("q5_k")),
        "attn_qkv": _always("q4_k"),
    }),
    "Q4_K_S": Mixture("q4_k", 14, {
        "attn_v": _before(4, "q5_k"), "ffn_down": _among_first(8, "q5_k"),
    }),
    "Q4_K_M": Mixture("q4_k", 15, {**_THIRDS, "attn_qkv": _always("q5_k")}),
    "Q5_K_S": Mixture("q5_k", 16),
    "Q5_K_M": Mixture("q5_k", 17, {**_THIRDS, "attn_qkv": _always("q6_k")}),
    "Q6_K": Mixture("q6_k", 18),
}  # fmt: skip
ALIASES = {"Q3_K": "Q3_K_M", "Q4_K": "Q4_K_M", "Q5_K": "Q5_K_M"}
FALLBACKS = {
    "q2_k": "q4_0", "q3_k": "q4_0", "q4_k": "q5_0", "q5_k": "q5_1", "q6_k": "q8_0",
    "iq4_xs": "iq4_nl",
}  # fmt: skip
"""Formats of blocks of 32 for rows that are no multiple of 256."""
_LAYER = re.compile(r"blk\.(\d+)\.(\w+)\.weight")


def mixture_of(name: str) -> Mixture:
    upper = name.upper()
    found = MIXTURES.get(ALIASES.get(upper, upper))
    if found is None:
        raise UnsupportedError(f"rlx does not quantise to {name[:40]!r}. It does to {known()}.")
    return found


def known() -> str:
    return ", ".join(MIXTURES)


@dataclass(frozen=True, slots=True)
class TypeRules:
    """The mixture, and of a model what its rules depend on."""

    mixture: Mixture
    layers: int
    sharing: int
    is_tied: bool

    def scheme(self, name: str, dims: tuple[int, ...]) -> str | None:
        """The format of a tensor; None leaves it as it is."""
        if len(dims) < 2 or not name.endswith(".weight") or "_norm." in name:
            return None
        return _fitting(self._wanted(name), dims[-1])

    def _wanted(self, name: str) -> str:
        if name == "output.weight" or (self.is_tied and name == "token_embd.weight"):
            return self.mixture.head
        found = _LAYER.fullmatch(name)
        rule = self.mixture.parts.get(found[2]) if found else None
        if not found or not rule:
            return self.mixture.base
        return rule(Place(int(found[1]), self.layers, self.sharing)) or self.mixture.base


def _fitting(scheme: str, columns: int) -> str:
    """The format, or that of shorter blocks where rows are no multiple of its own."""
    if columns % SCHEMES[scheme].weights == 0:
        return scheme
    shorter = FALLBACKS.get(scheme, "f16")
    return shorter if columns % SCHEMES[shorter].weights == 0 else "f16"
