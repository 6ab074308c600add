"""A language model in other block formats, with the error of each tensor."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rlx.core.errors import Error
from rlx.frontends.gguf.architecture import Architecture, architecture_of
from rlx.frontends.gguf.reader import GgufFile
from rlx.frontends.gguf.type_rules import Mixture, TypeRules
from rlx.frontends.gguf.writer import write_gguf
from rlx.ops.op import Array
from rlx.ops.quant.gguf import gguf_dequantize
from rlx.ops.quant.gguf_encoding import encoded

QUANTIZATION_VERSION = 2
"""Of block formats, as files state it."""
DECODE_ROWS = 4096
"""Rows that are decoded at a time."""


@dataclass(frozen=True, slots=True)
class Quantised:
    """One tensor: what it was, what it has become, and how far the weights are from what they
    were, as the root of the mean square relative to that of the weights."""

    name: str
    dims: tuple[int, ...]
    before: str
    after: str
    nbytes_before: int
    nbytes: int
    relative_error: float
    max_error: float


Done = Callable[[int, int, Quantised], None]
"""Called after each tensor: how many are done, of how many, and what became of it."""


def quantize(
    file: GgufFile,
    path: str | os.PathLike[str],
    mixture: Mixture,
    *,
    threads: int = 1,
    done: Done | None = None,
) -> list[Quantised]:
    """Write the model of a file in the formats of a mixture."""
    if Path(path).exists() and Path(path).samefile(file.name):
        raise Error(f"{path} is the model itself. Give another file to write to.")
    rules = _rules(file, mixture, architecture_of(file))
    schemes = {n: rules.scheme(n, t.dims) or t.scheme for n, t in file.tensors.items()}
    rows: list[Quantised] = []

    def blocks() -> Iterator[Array]:
        for name in file.tensors:
            made, row = _converted(file, name, schemes[name], threads)
            rows.append(row)
            if done:
                done(len(rows), len(schemes), row)
            yield made

    table = [(n, t.dims, schemes[n]) for n, t in file.tensors.items()]
    write_gguf(path, _metadata(file.metadata, mixture), table, blocks())
    return rows


def _rules(file: GgufFile, mixture: Mixture, a: Architecture) -> TypeRules:
    is_tied = "output.weight" not in file.tensors
    return TypeRules(mixture, a.layers, a.heads // a.kv_heads, is_tied)


def _metadata(found: Mapping[str, Any], mixture: Mixture) -> dict[str, Any]:
    stated = {"general.file_type": mixture.number}
    return {**found, **stated, "general.quantization_version": QUANTIZATION_VERSION}


def _converted(file: GgufFile, name: str, scheme: str, threads: int) -> tuple[Array, Quantised]:
    """The bytes of a tensor in another format, and its error. Bytes of the same format stay."""
    info, packed = file.tensors[name], file.packed(name)
    if scheme == info.scheme:
        row = Quantised(name, info.dims, scheme, scheme, packed.nbytes, packed.nbytes, 0.0, 0.0)
        return packed, row
    weights = decoded(packed, info.scheme)
    try:
        made = encoded(weights, scheme, threads)
    except Error as error:
        raise Error(f"{file.name}: tensor {name}: {error}") from None
    errors = decoded(made, scheme) - weights
    size = float(np.sqrt(np.mean(np.square(weights, dtype=np.float64))))
    root = float(np.sqrt(np.mean(np.square(errors, dtype=np.float64))))
    return made, Quantised(
        name, info.dims, info.scheme, scheme, packed.nbytes, made.nbytes,
        root / size if size else 0.0, float(np.abs(errors).max()),
    )  # fmt: skip


def decoded(packed: Array, scheme: str) -> Array:
    """The weights of rows of blocks, some rows at a time."""
    rows = packed.reshape(-1, packed.shape[-1])
    parts = [
        np.asarray(gguf_dequantize(rows[i : i + DECODE_ROWS], scheme=scheme))  # type: ignore[arg-type]
        for i in range(0, len(rows), DECODE_ROWS)
    ]
    return np.concatenate(parts).reshape(*packed.shape[:-1], -1)
