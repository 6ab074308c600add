"""Instruction counts: arithmetic in the unit of a target's peak rate, the fused multiply-add.

A target's flops are counted on multiply-adds, two by one instruction, and contractions reach that.
Any other operation is one instruction, which takes the time of two flops. An
elementary function is a polynomial and what surrounds it: some dozen instructions, however its op
counts its flops.
"""

from __future__ import annotations

from rlx.cost.terms import Terms
from rlx.ir.mir import Node
from rlx.ops.op import Kind

FLOPS_PER_INSTRUCTION = 2
"""Flops of a multiply-add, which takes as long as any other instruction."""
EXP, LOG, TANH, ERF, DIVIDE = 20, 36, 27, 34, 8
"""Vector instructions of these functions in single precision; a division takes as long as 8."""
INSTRUCTIONS = {
    "exp": EXP, "exp2": EXP, "expm1": LOG, "log": LOG, "log2": LOG, "log10": LOG, "log1p": LOG,
    "tanh": TANH, "erf": ERF, "sin": LOG, "cos": LOG, "tan": 2 * LOG, "pow": EXP + LOG,
    "div": DIVIDE, "reciprocal": DIVIDE, "sqrt": DIVIDE, "rsqrt": 2 * DIVIDE,
    "sigmoid": EXP + DIVIDE + 2, "silu": EXP + DIVIDE + 3, "gelu": ERF + 4, "gelu_tanh": TANH + 7,
    "elu": EXP + 3, "selu": EXP + 4, "softplus": EXP + LOG + 2, "mish": EXP + LOG + TANH + 3,
    "softmax": EXP + 5, "log_softmax": EXP + 5,
}  # fmt: skip
"""Of an op for each of its results, where flops say too little."""
CONCAT_INSTRUCTIONS = 4
"""Instructions of a concat per element and operand: a bounds test, a masked load, and a select."""
AT_FULL_RATE = (Kind.CONTRACTION, Kind.CONVOLUTION)


def peak_rate_flops(node: Node, terms: Terms) -> int:
    """A kernel's arithmetic, in flops at the peak rate."""
    if node.decl.kind is Kind.REGION:
        return sum(peak_rate_flops(n, terms) for n in node.attrs["body"].order() if not n.is_leaf)
    flops = terms.flops_of(node)
    if node.decl.kind is Kind.ATTENTION and "num_heads" in node.attrs:
        return flops + FLOPS_PER_INSTRUCTION * EXP * _scores(node, terms)
    if node.decl.kind in AT_FULL_RATE:
        return flops + _activation(node, terms)
    if node.op in INSTRUCTIONS:
        flops = INSTRUCTIONS[node.op] * _elements(node, terms)
    elif node.op == "concat":
        flops = CONCAT_INSTRUCTIONS * len(node.inputs) * _elements(node, terms)
    return FLOPS_PER_INSTRUCTION * flops


def _activation(node: Node, terms: Terms) -> int:
    """The activation of a product's epilogue."""
    name = node.attrs.get("activation")
    steps = INSTRUCTIONS.get(name, 0) if isinstance(name, str) else 0
    return FLOPS_PER_INSTRUCTION * steps * _elements(node, terms)


def _scores(node: Node, terms: Terms) -> int:
    """Pairs of a query and a key: each has a product of a head's depth, and is an exponential."""
    query, key = node.inputs[0].shape, node.inputs[1].shape
    heads = node.attrs["num_heads"]
    pairs = query.dims[0] * heads * query.dims[-2] * key.dims[-2]
    return terms.size_of(pairs)


def _elements(node: Node, terms: Terms) -> int:
    return terms.size_of(node.shapes[0].num_elements)
