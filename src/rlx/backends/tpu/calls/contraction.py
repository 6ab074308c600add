"""Products. f32 is multiplied as f32: a TPU's default would round the operands to bf16.

Half floats are multiplied as they are and summed in f32, which is what their product in f32 is: a
product of two has at most 22 bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rlx.backends.tpu.calls.table import TABLE
from rlx.backends.tpu.namespaces import jnp, lax
from rlx.core.dtype import DType

HALVES = (DType.F16.numpy, DType.BF16.numpy)


def accumulator(*operands: Any) -> Any:
    """The dtype of sums of their products."""
    return np.dtype(np.float32) if operands[0].dtype in HALVES else operands[0].dtype


def exact(*operands: Any) -> dict[str, Any]:
    """The precision of a product: nothing is rounded before it."""
    return {
        "precision": lax.Precision.HIGHEST,
        "preferred_element_type": accumulator(*operands),
    }


@TABLE.call("matmul", halves=True)
def matmul(x: Any, y: Any) -> Any:
    return jnp.matmul(x, y, **exact(x, y))


@TABLE.call("wide_matmul", halves=True)
def wide_matmul(x: Any, y: Any, *, to: DType) -> Any:
    """Half floats are exact in the accumulator; bytes are widened, as two dtypes may meet."""
    if x.dtype != y.dtype or to is not DType.F32 or x.dtype not in HALVES:
        x, y = x.astype(to.numpy), y.astype(to.numpy)
    return matmul(x, y)


@TABLE.call("dot_general", halves=True)
def dot_general(
    x: Any,
    y: Any,
    *,
    lhs_contract: Sequence[int],
    rhs_contract: Sequence[int],
    lhs_batch: Sequence[int],
    rhs_batch: Sequence[int],
) -> Any:
    numbers = ((lhs_contract, rhs_contract), (lhs_batch, rhs_batch))
    return lax.dot_general(x, y, numbers, **exact(x, y))


@TABLE.call("einsum", halves=True)
def einsum(*operands: Any, equation: str) -> Any:
    """Three operands and more round between their products, so halves are widened for them."""
    if len(operands) > 2:
        wide = accumulator(*operands)
        operands = tuple(x.astype(wide) for x in operands)
    return jnp.einsum(equation.replace(" ", ""), *operands, **exact(*operands))
