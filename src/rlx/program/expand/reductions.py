"""Reductions and scans by shuffles within warps and shared memory between them, or by shared memory
alone where there are no warps.

The order is the node's: neighbours first, so the bits are those of the node. The parts of warps go
through an array of their own; in a loop, where it is used again, a second barrier keeps a fast
warp from overwriting what a slow one has not read. Where a target reduces integers of a warp in one
instruction, that is left to it: they have the same bits in any order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from rlx.core.dtype import DType
from rlx.core.errors import UnsupportedError
from rlx.program import nodes as ir
from rlx.program.builder import Builder
from rlx.program.expand.rewrite import rewritten
from rlx.program.nodes import Node, ReduceOp
from rlx.program.program import Program
from rlx.program.values import Var

I32, U32 = DType.I32, DType.U32
WORDS = (I32, U32)
_Butterfly = Callable[[Builder, ReduceOp, Var, int], Var]
EXPANDED: frozenset[type[Node]] = frozenset((ir.Reduce, ir.ReduceScatter, ir.Scan))


def expand_reductions(program: Program, *, has_word_reductions: bool = False) -> Program:
    """The program without reductions and scans, for targets with shuffles; but for those of
    `WORDS` by whole warps, if the target has them."""
    kinds = EXPANDED & {type(n) for n in program.nodes}
    if not kinds:
        return program
    if kinds - {ir.Scan} and program.block % program.warp:
        raise UnsupportedError(
            f"program {program.name}: a block of {program.block} threads has a part of a warp of "
            f"{program.warp}, which shuffles do not reach. Make the block a multiple."
        )
    butterfly = _by_words if has_word_reductions else _butterfly
    rule = lambda b, node, args, loops: _expanded(b, node, args, loops, butterfly)
    return rewritten(program, kinds, rule)


def _expanded(
    b: Builder, node: Node, args: list[Var], loops: int, butterfly: _Butterfly
) -> Sequence[Var] | None:
    match node:
        case ir.Reduce():
            made = _reduced(b, node, _wide(args[0]), loops, butterfly)
            return [_narrow(made, args[0].dtype)]
        case ir.ReduceScatter():
            made = _scattered(b, node, [_wide(a) for a in args])
            return [_narrow(made, args[0].dtype)]
        case ir.Scan():
            return [_scanned(b, node, args[0])]
        case _:
            return None


def _wide(x: Var) -> Var:
    """Shuffles move 32 bits and more; sums of fewer bits are the low bits of their sum in 32."""
    return x.to(I32) if x.dtype.itemsize < 4 and not x.dtype.is_float else x


def _narrow(x: Var, dtype: DType) -> Var:
    return x.ne(0) if dtype is DType.BOOL and x.dtype is not DType.BOOL else x.to(dtype)


def _butterfly(b: Builder, op: ReduceOp, x: Var, width: int) -> Var:
    """Groups of `distance` threads hold one value each, so any thread of the other group will do:
    the one in reverse order, which operand permutations of AMD GPUs reach up to 16 threads."""
    distance = 1
    while distance < width:
        x = b.binary(op, x, b.shuffle(x, 2 * distance - 1))
        distance *= 2
    return x


def _by_words(b: Builder, op: ReduceOp, x: Var, width: int) -> Var:
    """The same of integers by the target's own reductions of words. The least of two words has the
    least high word, and the least low word beside it."""
    is_order = op in ("min", "max")
    if width != b.made.warp or not x.dtype.is_integer or not (is_order or op == "add"):
        return _butterfly(b, op, x, width)
    if x.dtype in WORDS:
        return b.warp_reduce(op, x)
    if not is_order:
        return _butterfly(b, op, x, width)
    high, low = (x >> 32).to(I32 if x.dtype.is_signed else U32), x.to(U32)
    best = b.warp_reduce(op, high)
    none = b.const(_identity(op, U32), U32)
    rest = b.warp_reduce(op, low.where(high.eq(best), none))
    return (best.to(x.dtype) << 32) | rest.to(x.dtype)


def _reduced(b: Builder, node: ir.Reduce, x: Var, loops: int, butterfly: _Butterfly) -> Var:
    warp, block = b.made.warp, b.made.block
    if node.scope == "warp":
        return butterfly(b, node.op, x, node.width)
    if warp == 1:
        return _by_shared_memory(b, node.op, x, loops)
    part = butterfly(b, node.op, x, warp)
    warps = block // warp
    if warps == 1:
        return part
    memory = b.shared(f"reduce{len(b.made.shared)}", x.dtype, warps)
    memory.store(b.warp, [part], b.lane.eq(0))
    b.barrier()
    total = _tree(b, node.op, [memory[w] for w in range(warps)])
    if loops:
        b.barrier()
    return total


def _by_shared_memory(b: Builder, op: ReduceOp, x: Var, loops: int) -> Var:
    """Without warps: some threads combine a run of neighbours each, then every thread their parts:
    two barriers for a block of any size. In a loop, each of the two arrays is written between
    barriers that are behind all reads of the last round."""
    block = b.made.block
    run = math.gcd(block, RUNS[block.bit_length()]) if block > MAX_TREE else 1
    memory = b.shared(f"reduce{len(b.made.shared)}", x.dtype, block)
    memory[b.thread] = x
    b.barrier()
    if run > 1:
        memory, whole = b.shared(f"reduce{len(b.made.shared)}", x.dtype, block // run), memory
        with b.when(b.thread < block // run):
            first = b.thread * run
            memory[b.thread] = _tree(b, op, [whole[first + i] for i in range(run)])
        b.barrier()
    total = _tree(b, op, [memory[i] for i in range(block // run)])
    if loops and run == 1:
        b.barrier()
    return total


MAX_TREE = 8
"""Threads whose values each of them combines by itself."""
RUNS = {bits: 1 << (bits // 2) for bits in range(12)}
"""The square root of the threads of a block, by their number of bits: as many runs as neighbours
in each."""


def _tree(b: Builder, op: ReduceOp, values: list[Var]) -> Var:
    """Every thread combines the warps' parts, neighbours first; all read the same words, which
    shared memory gives to a warp at once."""
    while len(values) > 1:
        pairs = zip(values[::2], values[1::2])
        values = [b.binary(op, x, y) for x, y in pairs] + values[len(values) // 2 * 2 :]
    return values[0]


def _scattered(b: Builder, node: ir.ReduceScatter, held: list[Var]) -> Var:
    distance = node.width // 2
    while distance:
        half = len(held) // 2
        if half:
            is_upper = (b.lane & distance).ne(0)
            kept = [h.where(is_upper, l) for l, h in zip(held, held[half:])]
            sent = [l.where(is_upper, h) for l, h in zip(held, held[half:])]
            held = [b.binary(node.op, k, b.shuffle(s, distance)) for k, s in zip(kept, sent)]
        else:
            held = [b.binary(node.op, held[0], b.shuffle(held[0], distance))]
        distance //= 2
    return held[0]


def _scanned(b: Builder, node: ir.Scan, x: Var) -> Var:
    """Hillis and Steele's: each step reads one of two arrays and writes the other."""
    group = b.made.block if node.scope == "block" else node.width
    if group == 1:
        return x if node.is_inclusive else b.const(_identity(node.op, x.dtype), x.dtype)
    memories = [b.shared(f"scan{len(b.made.shared)}", x.dtype, b.made.block) for _ in range(2)]
    own = b.thread if node.scope == "block" else b.lane % group
    value, turn = x, 0

    def behind(distance: int, otherwise: Var) -> tuple[Var, Var]:
        memory = memories[turn]
        memory[b.thread] = value
        b.barrier(node.scope)
        has = own >= distance
        (found,) = memory.load(b.thread - distance, mask=has)
        return has, found.where(has, otherwise)

    if not node.is_inclusive:
        _, value = behind(1, b.const(_identity(node.op, x.dtype), x.dtype))
        turn = 1
    distance = 1
    while distance < group:
        has, found = behind(distance, value)
        value = b.binary(node.op, found, value).where(has, value)
        distance, turn = distance * 2, 1 - turn
    b.barrier(node.scope)
    return value


def _identity(op: ReduceOp, dtype: DType) -> float | int | bool:
    if op in ("add", "mul"):
        return {"add": 0, "mul": 1}[op]
    if dtype is DType.BOOL:
        return op == "min"
    if dtype.is_float:
        return float("-inf") if op == "max" else float("inf")
    bits = dtype.itemsize * 8 - dtype.is_signed
    low = -(2**bits) if dtype.is_signed else 0
    return low if op == "max" else 2**bits - 1
