"""What factors must satisfy whose signs, phases or order are a convention.

Each property is a tensor that is the same for all right factors of one matrix: products, singular
values, scalar products of vectors. Those of ours are compared with those of torch's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

Pair = tuple[torch.Tensor, torch.Tensor]
"""A property of ours, and what it must be."""


def _gram(vectors: torch.Tensor) -> torch.Tensor:
    """Scalar products of columns: 0 and 1 for an orthonormal basis."""
    return vectors.mH @ vectors


def _product(u: torch.Tensor, s: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """u diag(s) vᴴ, of as many columns as there are values."""
    count = s.shape[-1]
    return (u[..., :count] * s[..., None, :].to(u.dtype)) @ v[..., :count].mH


def _of_svd(u: Any, s: Any, v: Any) -> list[torch.Tensor]:
    return [s, _product(u, s, v), _gram(u), _gram(v)]


def svd(x: torch.Tensor, got: Any, want: Any) -> list[Pair]:
    """Results (u, s, v)."""
    return list(zip(_of_svd(*got), _of_svd(*want)))


def svd_of_rows(x: torch.Tensor, got: Any, want: Any) -> list[Pair]:
    """Results (u, s, vᴴ)."""
    return svd(x, (got[0], got[1], got[2].mH), (want[0], want[1], want[2].mH))


def eigh(x: torch.Tensor, got: Any, want: Any) -> list[Pair]:
    return svd(x, (got[1], got[0], got[1]), (want[1], want[0], want[1]))


def eigvals(x: torch.Tensor, got: torch.Tensor, want: torch.Tensor) -> list[Pair]:
    """Each of theirs once, in an order of ours."""
    near = (got[..., :, None] - want[..., None, :]).abs().argmin(-1)
    every = torch.arange(got.shape[-1]).expand(near.shape)
    return [(near.sort(-1).values, every), (got, want.gather(-1, near))]


def eig(x: torch.Tensor, got: Any, want: Any) -> list[Pair]:
    """a v = v diag(w), and vectors of length 1."""
    values, vectors = got
    sizes = torch.linalg.vector_norm(vectors, dim=-2)
    return [
        *eigvals(x, values, want[0]),
        (x.to(vectors.dtype) @ vectors, vectors * values[..., None, :]),
        (sizes, torch.ones_like(sizes)),
    ]


PROPERTIES: dict[str, Callable[[torch.Tensor, Any, Any], list[Pair]]] = {
    "linalg.svd": svd_of_rows,
    "svd": svd,
    "svd_lowrank": svd,
    "pca_lowrank": svd,
    "linalg.eigh": eigh,
    "linalg.eig": eig,
    "linalg.eigvals": eigvals,
}
"""Entry → what its results are compared by, in the order of its results."""
