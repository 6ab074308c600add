"""Valid attributes for given operands: what a proof draws where a pattern leaves them open."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, Literal, get_args, get_origin

from rlx.core.attrs import Axes, Axis, hints_of
from rlx.core.dim import DimLike, is_static, product
from rlx.core.dtype import DType
from rlx.core.errors import GraphError
from rlx.core.shape import Shape
from rlx.ops.draw import Draw
from rlx.ops.op import Op

Attrs = dict[str, Any]


def attributes_for(draw: Draw, op: Op, shapes: Sequence[Shape]) -> Attrs:
    """Attributes with which `op` takes operands of `shapes`."""
    if op.name in _BY_NAME:
        return _BY_NAME[op.name](draw, shapes[0])
    return _by_annotation(draw, op, shapes[0].rank if shapes else 0)


def _by_annotation(draw: Draw, op: Op, rank: int) -> Attrs:
    hints = hints_of(op.reference)
    drawn: Attrs = {}
    for name, (_, default) in op.attr_specs.items():
        hint = hints.get(name, hints.get(name + "_"))
        if hint is Axis and rank:
            drawn[name] = draw.integer(-rank, rank - 1)
        elif hint is Axes:
            drawn[name] = draw.axes(rank)
        elif hint is bool:
            drawn[name] = draw.coin()
        elif hint is DType:
            drawn[name] = draw.dtype("a")
        elif get_origin(hint) is Literal:
            drawn[name] = draw.choice(get_args(hint))
        elif default is inspect.Parameter.empty:
            raise GraphError(f"{op.name}: nothing draws {name}")
    return drawn


def _perm(draw: Draw, x: Shape) -> Attrs:
    return {"perm": tuple(int(p) for p in draw.rng.permutation(x.rank))}


def _reshape(draw: Draw, x: Shape) -> Attrs:
    """The dims with some merged, split or padded by ones."""
    dims = list(x.dims)
    if dims and draw.coin(0.2):
        return {"dims": tuple(dims)}
    if len(dims) > 1 and draw.coin():
        spot = draw.integer(0, len(dims) - 2)
        dims[spot : spot + 2] = [product(dims[spot : spot + 2])]
    for spot, d in enumerate(dims):
        if is_static(d) and d % 2 == 0 and draw.coin():
            dims[spot : spot + 1] = [2, d // 2]
            break
    if draw.coin(0.4):
        dims.insert(draw.integer(0, len(dims)), 1)
    return {"dims": tuple(dims)}


def _narrow(draw: Draw, x: Shape) -> Attrs:
    axis = _static_axis(draw, x)
    size: Any = x.dims[axis]
    start = 0 if draw.coin(0.4) else draw.integer(0, size)
    length = size - start if draw.coin(0.4) else draw.integer(0, size - start)
    return {"axis": axis, "start": start, "length": length}


def _static_axis(draw: Draw, x: Shape) -> int:
    axes = [i for i, d in enumerate(x.dims) if is_static(d)]
    if not axes:
        raise GraphError("no axis of known size")
    return draw.choice(axes)


def _slice(draw: Draw, x: Shape) -> Attrs:
    drawn = [_range(draw, d) for d in x.static_dims]
    starts, stops, steps = zip(*drawn) if drawn else ((), (), ())
    return {"starts": starts, "stops": stops, "steps": steps}


def _range(draw: Draw, size: int) -> tuple[int, int, int]:
    if draw.coin(0.4):
        return 0, size, 1
    start = draw.integer(0, size)
    return start, draw.integer(start, size), draw.integer(1, 3)


def _expand(draw: Draw, x: Shape) -> Attrs:
    dims: list[DimLike] = [draw.size() if d == 1 and draw.coin() else d for d in x.dims]
    return {"dims": (*draw.dims(0, 1), *dims)}


def _squeeze(draw: Draw, x: Shape) -> Attrs:
    return {"axes": tuple(i for i, d in enumerate(x.dims) if d == 1 and draw.coin(0.7))}


def _expand_dims(draw: Draw, x: Shape) -> Attrs:
    return {"axes": (draw.integer(0, x.rank),) if draw.coin(0.8) else (0, x.rank + 1)}


def _flip(draw: Draw, x: Shape) -> Attrs:
    return {"axes": tuple(i for i in range(x.rank) if draw.coin())}


def _pad(draw: Draw, x: Shape) -> Attrs:
    low, high = (tuple(draw.integer(0, 1) * draw.coin(0.2) for _ in x.dims) for _ in range(2))
    return {"low": low, "high": high}


_BY_NAME: dict[str, Callable[[Draw, Shape], Attrs]] = {
    "transpose": _perm,
    "reshape": _reshape,
    "narrow": _narrow,
    "slice": _slice,
    "expand": _expand,
    "squeeze": _squeeze,
    "expand_dims": _expand_dims,
    "flip": _flip,
    "pad": _pad,
}
