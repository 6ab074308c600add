"""What Triton calls the ops and element types of the table."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rlx.core.dtype import DType
from rlx.kernel.expr import Apply, Const

NAMES = {
    **{DType(f"{sign}{bits}"): f"tl.{word}{bits}"
       for sign, word in (("i", "int"), ("u", "uint")) for bits in (8, 16, 32, 64)},
    DType.BOOL: "tl.int1", DType.F16: "tl.float16", DType.BF16: "tl.bfloat16",
    DType.F32: "tl.float32", DType.F64: "tl.float64",
}  # fmt: skip
NAN = "propagate_nan=tl.PropagateNan.ALL"
OPS = {
    "add": "{} + {}", "sub": "{} - {}", "mul": "{} * {}", "neg": "-{}", "abs": "tl.abs({})",
    "maximum": f"tl.maximum({{}}, {{}}, {NAN})", "minimum": f"tl.minimum({{}}, {{}}, {NAN})",
    "equal": "{} == {}", "less": "{} < {}", "less_equal": "{} <= {}",
    "where": "tl.where({}, {}, {})",
    "logical_and": "{} & {}", "logical_or": "{} | {}", "logical_not": "{} == 0",
}  # fmt: skip
FLOAT_OPS = {
    "div": "{} / {}", "fma": "tl.fma({}, {}, {})", "floor": "tl.floor({})", "exp": "tl.exp({})",
    "log": "tl.log({})", "sqrt": "tl.sqrt({})", "sin": "tl.sin({})", "cos": "tl.cos({})",
    "erf": "tl.erf({})",
}  # fmt: skip
COMBINE = {"sum": OPS["add"], "prod": OPS["mul"], "max": OPS["maximum"], "min": OPS["minimum"]}


def is_native(node: Apply) -> bool:
    """Is it an op that Triton has for these numbers? Others are spelled by their lowerings."""
    name, given = node.op.name, node.args[0].dtype
    if name == "cast":
        return node.dtype.is_float or not given.is_float
    return name in OPS or (name in FLOAT_OPS and given.is_float)


def spell(node: Apply, args: Sequence[str]) -> str:
    """An op on values that are held as their dtype's compute dtype."""
    if node.op.name != "cast":
        return {**OPS, **FLOAT_OPS}[node.op.name].format(*args)
    if node.dtype is DType.BOOL:
        return f"{args[0]} != 0"
    return rounded(args[0], node.dtype)


def rounded(value: str, dtype: DType) -> str:
    """The value as a number of this dtype, held as such values are."""
    made = f"{value}.to({NAMES[dtype]})"
    return made if dtype.compute is dtype else f"{made}.to({NAMES[dtype.compute]})"


def number(value: float, dtype: DType) -> str:
    """A typed number."""
    text = f'float("{value}")' if not np.isfinite(value) else repr(value)
    return f"tl.full((), {text}, {NAMES[dtype.compute]})"


def constant(node: Const) -> str:
    wide = node.value.astype(np.float64) if node.dtype.is_float else node.value
    return number(wide.item(), node.dtype)
