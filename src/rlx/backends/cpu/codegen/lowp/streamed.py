"""Products that stream quantised weights: which they are, without the code that does it."""

from __future__ import annotations

from rlx.ir.mir import Node
from rlx.kernel.lower.loop import body_of
from rlx.ops.op import Kind

STREAMED = frozenset({
    "gguf_matmul", "gguf_int8_matmul", "gguf_grouped_matmul", "dequant_grouped_matmul",
    "grouped_matmul",
})  # fmt: skip
"""Products that stream quantised weights: of one matrix, or of each row's expert."""


def streams(node: Node) -> bool:
    """Is it such a product? Bytes that are only scaled are a GEMM whose sums are."""
    if node.op != "dequant_matmul":
        return node.op in STREAMED
    return node.attrs["packing"] not in ("int8", "uint8") or len(node.inputs) > 3


def packed_in(node: Node) -> Node | None:
    """The one such product in a region; None where there is none, or several."""
    if node.decl.kind is not Kind.REGION:
        return None
    found = [n for n in body_of(node).order() if streams(n)]
    return found[0] if len(found) == 1 else None
