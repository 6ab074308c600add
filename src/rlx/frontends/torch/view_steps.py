"""Writes through views: how the base changes when what a view shows is replaced."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from rlx import ops
from rlx.core.dtype import DType
from rlx.frontends.torch.aliasing import Step
from rlx.frontends.torch.handlers import handler_of
from rlx.frontends.torch.handlers.tensor.movement import strided_places
from rlx.frontends.torch.node_call import Call, Refused, axis_of
from rlx.ir.mir import Node

if TYPE_CHECKING:
    from rlx.frontends.torch.importer import Importer

Put = Callable[[Call, Node, Node], Node]
RESHAPING = frozenset({
    "view", "reshape", "_unsafe_view", "unsqueeze", "squeeze", "flatten", "unflatten", "alias",
    "detach", "contiguous", "to", "view_as", "reshape_as", "_reshape_alias", "ravel",
    "resolve_conj", "resolve_neg", "type_as", "lift_fresh", "atleast_1d", "atleast_2d",
    "atleast_3d",
})  # fmt: skip
PERMUTING = frozenset({
    "permute", "transpose", "t", "movedim", "swapaxes", "swapdims", "numpy_T", "mT", "moveaxis",
    "adjoint", "mH", "matrix_H",
})  # fmt: skip
SCATTERS = {"slice": "slice_scatter", "select": "select_scatter", "narrow": "slice_scatter"}
"""Views that an op of torch's own writes to."""


def view_step(importer: Importer, call: Call, index: int | None) -> Step:
    """The view of a call, or of one of its results."""
    first = next(iter(call.args))

    def show(base: Node) -> Node:
        given = replace(call, args={**call.args, first: base})
        made = importer.fitted(given, _shown(importer, given))
        return made if index is None else made[index]

    def put(base: Node, new: Node) -> Node:
        given = replace(call, args={**call.args, first: base})
        return _put(importer, given, index, show, new)

    return Step(show, put)


def _shown(importer: Importer, call: Call) -> Any:
    handler = handler_of("aten", call.op)
    if handler is None:
        raise Refused("rlx has no handler for this view of a tensor that is written to")
    return importer.handled(call, handler)


def _put(
    importer: Importer, call: Call, index: int | None, show: Callable[[Node], Node], new: Node
) -> Node:
    base: Node = call.args[next(iter(call.args))]
    if call.op in RESHAPING and call.overload != "dtype":
        return ops.reshape(new, dims=base.shape.dims)
    if call.op in PERMUTING and not base.shape.dtype.is_complex:
        return ops.transpose(new, perm=_inverse(show, base))
    if call.op in SCATTERS:
        return _scattered(importer, call, base, new)
    if call.op in _PUTS:
        return _PUTS[call.op](call, base, new)
    return _at_indices(importer, call, index, base, new)


def _scattered(importer: Importer, call: Call, base: Node, new: Node) -> Node:
    handler = handler_of("aten", SCATTERS[call.op])
    assert handler is not None
    rest = {k: v for k, v in call.args.items() if k != "self"}
    if call.op == "narrow":
        rest = _bounds(base, **rest)
    like = replace(call, args={"self": base, "src": new, **rest}, value=call.fakes["self"])
    return handler(like, base, new, **rest)


def _bounds(base: Node, dim: int, start: Any, length: Any) -> dict[str, Any]:
    """A narrowed axis as a slice of it."""
    size = base.shape.dims[axis_of(base, dim)]
    low = start if not isinstance(start, int) or start >= 0 else size + start
    return {"dim": dim, "start": low, "end": low + length}


def _inverse(show: Callable[[Node], Node], base: Node) -> tuple[int, ...]:
    """The permutation that undoes a view, read off what it does to a small array."""
    shown = show(base)
    perm = shown.attrs.get("perm") if shown.op == "transpose" and shown.inputs[0] is base else None
    if perm is None:
        if shown is not base:
            raise Refused("a write through this view")
        perm = tuple(range(base.shape.rank))
    return tuple(int(i) for i in np.argsort(perm))


def _at_indices(importer: Importer, call: Call, index: int | None, base: Node, new: Node) -> Node:
    """The base with new values at the places that the view shows: the view of positions says
    which. A place that is shown twice has no single new value."""
    if _repeats(call):
        raise Refused(f"a write through {call.op}, which shows an element more than once")
    count = base.shape.num_elements
    positions = ops.reshape(call.positions((count,), 0), dims=base.shape.dims)
    made = _shown(importer, replace(call, args={**call.args, next(iter(call.args)): positions}))
    shown = made if index is None else made[index]
    total = shown.shape.num_elements
    changed = ops.scatter(
        ops.reshape(base, dims=(count,)),
        ops.reshape(shown, dims=(total,)),
        ops.reshape(new, dims=(total,)),
        axis=0,
    )
    return ops.reshape(changed, dims=base.shape.dims)


def _repeats(call: Call) -> bool:
    """Does a view show an element more than once?"""
    match call.op:
        case "as_strided":
            rest = (call.args[n] for n in ("size", "stride", "storage_offset"))
            places = strided_places(call, *rest)
            return np.unique(places).size < places.size
        case "unfold":
            return call.args["size"] > call.args["step"]
        case _:
            return call.op in ("expand", "expand_as", "broadcast_to")


# -- parts of complex numbers and other dtypes -----------------------------------------------------


def _put_real(call: Call, base: Node, new: Node) -> Node:
    if not base.shape.dtype.is_complex:
        return new
    return ops.make_complex(new, ops.imag(base))


def _put_imag(call: Call, base: Node, new: Node) -> Node:
    return ops.make_complex(ops.real(base), new)


def _put_bits(call: Call, base: Node, new: Node) -> Node:
    if base.shape.dtype.itemsize != new.shape.dtype.itemsize or DType.BOOL in (
        base.shape.dtype, new.shape.dtype,
    ):  # fmt: skip
        raise Refused("a write through a view of another width")
    return ops.bitcast(new, to=base.shape.dtype)


_PUTS: Mapping[str, Put] = {
    "real": _put_real,
    "imag": _put_imag,
    "view_as_real": lambda call, base, new: ops.view_as_complex(new),
    "view_as_complex": lambda call, base, new: ops.view_as_real(new),
    "_conj": lambda call, base, new: ops.conj(new),
    "_neg_view": lambda call, base, new: ops.neg(new),
    "view": _put_bits,
}
