"""Tensors made from sizes and numbers."""

from __future__ import annotations

import numpy as np
from onnx import helper, numpy_helper

from rlx.core.dtype import DType
from rlx.ops.draw import Spec
from tests.onnx.differential.drawing import Draw, Node, Operand, Rounding, draws, explain


def _number(kind: DType) -> int:
    return helper.np_dtype_to_tensor_dtype(np.dtype(kind.numpy))


@draws("Range")
def _range(d: Draw) -> Node:
    kind = d.kind("T").numpy
    start, count, step = d.integer(-5, 5), d.integer(0, 6), d.choice((1, 2, 3, -1, -2))
    stop = start + count * step + (d.integer(-1, 1) if abs(step) > 1 else 0)
    scale = 0.25 if kind.kind == "f" and d.coin() else 1
    if d.coin(0.1):
        stop = start - step
    ends = [np.array(v * scale, kind) for v in (start, stop, step)]
    return d.node(*(Operand(e, d.coin(0.6), has_names=False) for e in ends))


@draws("EyeLike")
def _eye(d: Draw) -> Node:
    x = d.tensor(d.dims(2, 2), "T1")
    attrs = d.some(k=d.choice((0, 1, -1, 3, -9)))
    return d.node(x, **attrs, **({"dtype": _number(d.kind("T2"))} if d.coin() else {}))


@draws("ConstantOfShape")
def _filled(d: Draw) -> Node:
    shape = d.shaping(d.dims())
    if d.coin(0.2):
        return d.node(shape)
    value = d.values(Spec((1,), d.kind("T2"), "any"))
    return d.node(shape, value=numpy_helper.from_array(value))


@draws("Constant")
def _constant(d: Draw) -> Node:
    if d.opset >= 12 and d.coin():
        name, value = d.choice(
            (("value_int", d.choice((0, -3, 2**63 - 1, -(2**63)))),
             ("value_ints", [1, -2, 3]),
             ("value_float", 0.5), ("value_floats", [1.5, -0.5])),
        )  # fmt: skip
        return d.node(**{name: value})
    value = d.values(Spec(d.dims(), d.kind("T"), "any"))
    return d.node(value=numpy_helper.from_array(value))


@draws("BlackmanWindow", "HammingWindow", "HannWindow")
def _window(d: Draw) -> Node:
    size = Operand(np.array(d.choice((0, 1, 2, 5, 8, 17)), d.kind("T1").numpy), d.coin(0.7), False)
    kinds = [k for k in d.admitted("T2") if k.numpy.kind == "f"]
    attrs = d.some(periodic=d.integer(0, 1), output_datatype=_number(d.choice(kinds)))
    return d.node(size, tolerance=Rounding(8.0, 1.0), **attrs)


@draws("MelWeightMatrix")
def _mel(d: Draw) -> Node:
    kind = d.kind("T1").numpy
    bins, length, rate = d.integer(1, 8), d.choice((16, 64, 256)), d.choice((8000, 16000))
    low = float(d.choice((0, 20, 100)))
    high = float(d.choice((1000, 3000, rate // 2)))
    operands = [np.array(v, kind) for v in (bins, length, rate)]
    operands += [np.array(v, np.float32) for v in (low, high)]
    chosen = [Operand(o, d.coin(0.8), False) for o in operands]
    kinds = [k for k in d.admitted("T3") if k.numpy.kind == "f"]
    attrs = d.some(output_datatype=_number(d.choice(kinds)))
    return d.node(*chosen, tolerance=Rounding(64.0, 1.0), **attrs)


explain(
    "BlackmanWindow", "HammingWindow", "HannWindow",
    right="reference",
    why="onnxruntime computes double precision in single",
    when=lambda n: n.attrs.get("output_datatype") == 11,
)  # fmt: skip
