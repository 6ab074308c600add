"""What many rules ask of nodes, and the few things they build."""

from __future__ import annotations

from typing import Any

import numpy as np

from rlx import ops
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
