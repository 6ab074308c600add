"""Arithmetic by the instruction: what it takes where a rate is that of multiply-adds.

A target's flops are counted on multiply-adds, two by one instruction, and contractions reach that.
Any other step on a number is an instruction of its own, which takes the time of two flops. An
elementary function is a polynomial and what surrounds it: some dozen instructions, however its op
counts its flops.
"""

from __future__ import annotations

from rlx.cost.terms import Terms
from rlx.ir.mir import Node
from rlx.ops.op import Kind

PER_INSTRUCTION = 2
"""Flops of a multiply-add, in whose time one instruction of any sort is done."""
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
CHOICE = 4
"""A concat tests, for each of its parts, where it is, reads with a mask, and selects."""
AT_FULL_RATE = (Kind.CONTRACTION, Kind.CONVOLUTION)


def work_of(node: Node, terms: Terms) -> int:
    """The flops that a target does in the time of a kernel's arithmetic."""
    if node.decl.kind is Kind.REGION:
        return sum(work_of(n, terms) for n in node.attrs["body"].order() if not n.is_leaf)
    flops = terms.flops_of(node)
    if node.decl.kind is Kind.ATTENTION and "num_heads" in node.attrs:
        return flops + PER_INSTRUCTION * EXP * _scores(node, terms)
    if node.decl.kind in AT_FULL_RATE:
        return flops + _activation(node, terms)
    if node.op in INSTRUCTIONS:
        flops = INSTRUCTIONS[node.op] * _elements(node, terms)
    elif node.op == "concat":
        flops = CHOICE * len(node.inputs) * _elements(node, terms)
    return PER_INSTRUCTION * flops


def _activation(node: Node, terms: Terms) -> int:
    """What a product does to its sums."""
    name = node.attrs.get("activation")
    steps = INSTRUCTIONS.get(name, 0) if isinstance(name, str) else 0
    return PER_INSTRUCTION * steps * _elements(node, terms)


def _scores(node: Node, terms: Terms) -> int:
    """Pairs of a query and a key: each has a product of a head's depth, and is an exponential."""
    query, key = node.inputs[0].shape, node.inputs[1].shape
    heads = node.attrs["num_heads"]
    pairs = query.dims[0] * heads * query.dims[-2] * key.dims[-2]
    return terms.size_of(pairs)


def _elements(node: Node, terms: Terms) -> int:
    return terms.size_of(node.shapes[0].num_elements)
