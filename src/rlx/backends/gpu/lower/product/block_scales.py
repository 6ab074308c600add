"""Scales and offsets of quantised blocks, decoded once.

A weight is scale · code - offset, of which the scale and the offset are the same for a whole block.
Decoding those takes longer than the code does: they are packed themselves, of six bits and a factor
of f16. As numbers in f32 they take some more bytes of memory and a load each.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from rlx.core.dim import is_static, product
from rlx.core.dtype import DType
from rlx.core.shape import Shape
from rlx.kernel.contract import Contract
from rlx.kernel.expr import Affine, Apply, Axis, Expr, Exprs, Kernel, Load, Store, postorder
from rlx.kernel.rewrite import Rewriter

MAX_SHARE = 0.6
"""Of the bytes of the weights, that decoded scales may take."""


def decoded_scales(contract: Contract, constants: frozenset[int]) -> tuple[Contract, Kernel] | None:
    """The contraction that reads scales as one more operand, and the kernel that decodes them; none
    where blocks share nothing that is computed."""
    if contract.more:
        return None
    along = _along(contract.right)
    nodes = [] if along is None else list(_shared(contract.right, along, constants))
    order = (*contract.batch, contract.columns, *contract.inner)
    if not nodes or not all(n.free <= set(order) for n in nodes):
        return None
    places, count = _places(nodes, order)
    given = sum(_size(contract, n) for n in _operands(nodes))
    if count is None or 4 * count > MAX_SHARE * given:
        return None
    exprs, number, shape = Exprs(), len(contract.operands), Shape((count,), DType.F32)
    stores = tuple(Store(0, at, n) for n, at in zip(nodes, places))
    used = frozenset[Axis]().union(*(n.free for n in nodes))
    axes = tuple(a for a in order if a in used)
    # flat, as those of a bucket of sizes are: what is decoded is the same for all of them
    flat = tuple(Shape((s.num_elements,), s.dtype) for s in contract.operands)
    kernel = Kernel(f"{contract.name}.scales", axes, stores, flat, (shape,))
    loads: dict[Expr, Expr] = {n: exprs.load(number, at, DType.F32) for n, at in zip(nodes, places)}
    right = Rewriter(exprs, replaced=loads)(contract.right)
    return replace(contract, right=right, operands=(*contract.operands, shape)), kernel


def _along(factor: Expr) -> Axis | None:
    """The axis along which most of the bytes are contiguous."""
    loads = [n for n in postorder([factor]) if isinstance(n, Load) and n.dtype is DType.U8]
    if not loads or not all(is_static(a.extent) for n in loads for a in n.free):
        return None
    most = max(loads, key=lambda n: int(_points(n)))
    return next((a for a, c in most.at.terms if c == 1 and a.extent != 1), None)


def _points(node: Expr) -> int:
    count = product(a.extent for a in node.free)
    assert is_static(count)
    return count


def _shared(node: Expr, along: Axis, constants: frozenset[int]) -> Iterator[Expr]:
    """The greatest parts in f32 that do not vary along an axis and follow from constant bytes."""
    loads = [n for n in postorder([node]) if isinstance(n, Load)]
    is_decoded = isinstance(node, Apply) and any(n.dtype is DType.U8 for n in loads)
    if is_decoded and node.dtype is DType.F32 and along not in node.free:
        if all(n.operand in constants and not n.args for n in loads):
            yield node
        return
    for part in dict.fromkeys(node.args):
        yield from _shared(part, along, constants)


def _operands(nodes: list[Expr]) -> set[int]:
    return {n.operand for n in postorder(nodes) if isinstance(n, Load)}


def _size(contract: Contract, operand: int) -> int:
    """Bytes."""
    size = contract.operands[operand].size_bytes
    return size if is_static(size) else 0


def _places(nodes: list[Expr], order: tuple[Axis, ...]) -> tuple[list[Affine], int | None]:
    """Where the values of each part begin, and how many there are; none where that is unknown."""
    places: list[Affine] = []
    start = 0
    for node in nodes:
        at, weight = Affine((), start), 1
        for axis in reversed([a for a in order if a in node.free]):
            if not is_static(axis.extent):
                return [], None
            at, weight = at + Affine.of(axis) * weight, weight * axis.extent
        places.append(at)
        start += weight
    return places, start
