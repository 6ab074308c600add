"""Linear layers with quantised weights."""

from __future__ import annotations

from typing import Any, Literal

from rlx import ops
from rlx.core.errors import GraphError
from rlx.ir.block import DIRECT, FUSABLE, FusionPolicy, block
from rlx.ops.fused import activated
from rlx.ops.quant.block_scaled import PACKINGS, Packing, times_transposed
from rlx.ops.quant.gguf import Scheme

AnyScheme = Literal[Scheme, Packing]


@block("f[*b k], u8[n w], _[n g]?, _[n g]?, f[n]? -> f[*b n]", label="{name}({scheme})")
def dequant_linear(
    x: Any,
    packed: Any,
    scale: Any = None,
    zero: Any = None,
    bias: Any = None,
    *,
    scheme: AnyScheme,
    run: int | None = None,
    activation: str | None = None,
    policy: FusionPolicy = FUSABLE,
) -> Any:
    """activation(x · Wᵀ + bias), where row i of `packed` holds the weights of output i: in one of
    GGUF's schemes, whose bytes say all, or as small numbers in runs of `run`, each with a scale
    and perhaps a zero point of its own.

    Direct is one product that unpacks; Fusable unpacks, then multiplies."""
    operands, layout = _unpacking(packed, scale, zero, scheme, run)
    is_gguf = "scheme" in layout
    if policy is DIRECT:
        multiply = ops.gguf_matmul if is_gguf else ops.dequant_matmul
        made = multiply(x, *operands, **layout)
    else:
        unpack = ops.gguf_dequantize if is_gguf else ops.block_dequantize
        made = times_transposed(x, unpack(*operands, **layout), ops.matmul)
    return activated(made if bias is None else ops.add(made, bias), activation)


def _unpacking(
    packed: Any, scale: Any, zero: Any, scheme: AnyScheme, run: int | None
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The operands and attributes of the ops that unpack."""
    if scheme not in PACKINGS:
        if scale is not None or zero is not None or run is not None:
            raise GraphError(f"{scheme} holds its own scales: it takes no scale, zero or run")
        return (packed,), {"scheme": scheme}
    if scale is None or run is None:
        raise GraphError(f"{scheme} needs operand scale and attribute run")
    return (packed, scale, zero), {"packing": scheme, "block": run}
