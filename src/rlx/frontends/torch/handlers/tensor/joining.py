"""Concatenation, stacking, repetition and padding."""

from __future__ import annotations

from typing import Any

from rlx import ops
from rlx.core.dim import DimLike, product
from rlx.core.dtype import DType
from rlx.frontends.torch.handlers import handles
from rlx.frontends.torch.node_call import Call, axis_of, rank
from rlx.ir.mir import Node


@handles("cat", "concat", "concatenate")
def cat(call: Call, x: Any, dim: int = 0) -> Node:
    """Operands of one empty axis take no part, whatever the rank of the others."""
    parts = [p for p in x if not (rank(p) == 1 and p.shape.dims[0] == 0)] or [x[0]]
    parts = [call.node(p, call.dtype) for p in parts]
    return ops.concat(parts, axis=axis_of(parts[0], dim)) if len(parts) > 1 else parts[0]


@handles("stack")
def stack(call: Call, x: Any, dim: int = 0) -> Node:
    return ops.stack([call.node(p, call.dtype) for p in x], axis=dim % (rank(x[0]) + 1))


@handles("repeat", "tile")
def repeat(call: Call, x: Node, *repeats: Any) -> Node:
    times: list[DimLike] = [*[1] * (rank(x) - len(repeats[0])), *repeats[0]]
    if not times:
        return x
    wide = ops.reshape(x, dims=(*[1] * (len(times) - rank(x)), *x.shape.dims))
    if all(isinstance(t, int) for t in times):
        return ops.tile(wide, repeats=tuple(times))
    return _repeated(wide, times)


def _repeated(x: Node, times: list[DimLike]) -> Node:
    """Repetition by a number that is a size: a new axis before each, broadcast."""
    between = [d for size in x.shape.dims for d in (1, size)]
    wanted = [d for t, size in zip(times, x.shape.dims) for d in (t, size)]
    made = ops.expand(ops.reshape(x, dims=tuple(between)), dims=tuple(wanted))
    return ops.reshape(made, dims=tuple(product(p) for p in zip(times, x.shape.dims)))


@handles("repeat_interleave")
def repeat_interleave(call: Call, x: Node, repeats: Any = None, dim: Any = None,
                      output_size: Any = None) -> Node:  # fmt: skip
    call.require(isinstance(repeats, int), "as many repetitions as data says")
    flat = x if dim is not None else ops.reshape(x, dims=(x.shape.num_elements,))
    axis = axis_of(flat, dim or 0)
    if not rank(flat):
        return ops.expand(ops.reshape(flat, dims=(1,)), dims=call.dims)
    dims = list(flat.shape.dims)
    wide = ops.reshape(flat, dims=(*dims[: axis + 1], 1, *dims[axis + 1 :]))
    made = ops.expand(wide, dims=(*dims[: axis + 1], repeats, *dims[axis + 1 :]))
    return ops.reshape(made, dims=call.dims)


# -- padding -------------------------------------------------------------------------------------


def _sides(x: Node, pad: Any) -> tuple[list[Any], list[Any]]:
    """What is added before and after each axis; torch counts from the last."""
    low, high = [0] * rank(x), [0] * rank(x)
    for i in range(len(pad) // 2):
        low[-1 - i], high[-1 - i] = pad[2 * i], pad[2 * i + 1]
    return low, high


def _cropped(x: Node, low: list[Any], high: list[Any]) -> Node:
    """Negative padding takes away."""
    for axis, (before, after) in enumerate(zip(low, high)):
        a = -before if isinstance(before, int) and before < 0 else 0
        b = -after if isinstance(after, int) and after < 0 else 0
        if a or b:
            x = ops.narrow(x, axis=axis, start=a, length=x.shape.dims[axis] - a - b)
    return x


def padded(x: Node, pad: Any, mode: Any = "constant", value: Any = 0) -> Node:
    """What is negative is taken away of what the rest made, of wrapped tensors before."""
    if x.shape.dtype.is_complex and mode == "constant":
        parts = zip((ops.real(x), ops.imag(x)), (complex(value).real, complex(value).imag))
        return ops.make_complex(*(padded(part, pad, value=number) for part, number in parts))
    low, high = _sides(x, pad)
    if mode == "wrap":
        x = _cropped(x, low, high)
    positive = [[max(0, p) if isinstance(p, int) else p for p in side] for side in (low, high)]
    if any(p != 0 for side in positive for p in side):
        how: dict[str, Any] = {} if mode != "constant" else {"value": value}
        x = ops.pad(x, low=tuple(positive[0]), high=tuple(positive[1]), mode=mode, **how)
    return x if mode == "wrap" else _cropped(x, low, high)


MODES = {"constant": "constant", "reflect": "reflect", "replicate": "edge", "circular": "wrap"}


@handles("constant_pad_nd")
def constant_pad(call: Call, x: Node, pad: Any, value: Any = 0) -> Node:
    if x.shape.dtype is DType.BOOL:
        return converted_pad(call, x, pad, value)
    return padded(x, pad, value=value)


def converted_pad(call: Call, x: Node, pad: Any, value: Any) -> Node:
    made = padded(ops.cast(x, to=DType.U8), pad, value=int(bool(value)))
    return ops.cast(made, to=DType.BOOL)


@handles("pad")
def pad_(call: Call, x: Node, pad: Any, mode: str = "constant", value: Any = None) -> Node:
    if mode == "constant":
        return constant_pad(call, x, pad, value or 0)
    return padded(x, pad, MODES[mode])


@handles("reflection_pad1d", "reflection_pad2d", "reflection_pad3d", "_reflection_pad")
def reflection_pad(call: Call, x: Node, padding: Any) -> Node:
    return padded(x, padding, "reflect")


@handles("replication_pad1d", "replication_pad2d", "replication_pad3d")
def replication_pad(call: Call, x: Node, padding: Any) -> Node:
    return padded(x, padding, "edge")


@handles("_pad_circular")
def circular_pad(call: Call, x: Node, pad: Any) -> Node:
    return padded(x, pad, "wrap")
