"""What many rules ask of nodes, and the few things they build."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rlx import ops
from rlx.core.dim import DimLike
from rlx.ir.mir import Node


def is_integer(node: Node) -> bool:
    return node.dtype.is_integer


def is_float(node: Node) -> bool:
    return node.dtype.is_float


def is_real(node: Node) -> bool:
    """A float or an integer: complex infinities follow other laws."""
    return node.dtype.is_integer or node.dtype.is_float


def fit(x: Node, like: Node) -> Node:
    """`x`, repeated to the dims of `like` where broadcasting had done so."""
    return x if x.shape.dims == like.shape.dims else ops.expand(x, dims=like.shape.dims)


def filled(value: Any, like: Node) -> Node:
    """One value in the dims and dtype of `like`."""
    return fit(scalar(value, like), like)


def scalar(value: Any, like: Node) -> Node:
    """A constant of rank 0 in the dtype of `like`."""
    return like.graph.constant(np.asarray(value).astype(like.dtype.numpy))


def runs_of(fine: Sequence[DimLike], coarse: Sequence[DimLike]) -> list[tuple[DimLike, ...]] | None:
    """The runs of `fine` whose products are the `coarse` dims, in order; None if they are not."""
    runs, at = list[tuple[DimLike, ...]](), 0
    for size in coarse:
        start, total = at, 1
        while at < len(fine) and (total != size or (size == 1 == fine[at] and at == start)):
            total, at = total * fine[at], at + 1
        if total != size:
            return None
        runs.append((*fine[start:at],))
    if any(d != 1 for d in fine[at:]):
        return None
    return [*runs[:-1], (*runs[-1], *fine[at:])] if runs else []
