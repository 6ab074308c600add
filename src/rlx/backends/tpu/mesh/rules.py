"""How each op relates the axes of its operands to those of its results.

An op without a rule is taken to need every axis whole: that is always right, and is said where it
keeps a product from being split.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rlx.backends.tpu.mesh.facts import Block, Columns, Facts, Summed, Tie, aligned, blocked
from rlx.core.dim import DimLike
from rlx.ir.mir import Node
from rlx.ops.op import Kind

Rule = Callable[[Node], Facts]
RULES: dict[str, Rule] = {}


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Register the rule of some ops."""

    def keep(made: Rule) -> Rule:
        RULES.update(dict.fromkeys(names, made))
        return made

    return keep


def facts_of(node: Node) -> Facts:
    """What a node says about axes."""
    if node.is_leaf:
        return iter(())
    found = RULES.get(node.op)
    if found is not None:
        return found(node)
    if node.decl.kind is Kind.ELEMENTWISE:
        return _elementwise(node)
    return blocked(node, f"{node.op} needs every axis whole")


# -- elementwise, rows, reductions ----------------------------------------------------------------


def _elementwise(node: Node) -> Facts:
    for operand in node.inputs:
        yield from aligned(operand, node)


@rule("softmax", "log_softmax", "layer_norm", "rms_norm", "fused_residual_ln",
      "fused_residual_rms_norm", "hard_max", "lp_normalization")  # fmt: skip
def _row(node: Node) -> Facts:
    """A norm of scale and bias reduces over all axes from `axis` on, a softmax over one."""
    rank = node.shape.rank
    first = node.attrs["axis"] % max(rank, 1)
    is_run = node.decl.reduces_trailing
    reduced = tuple(range(first, rank)) if is_run else (first,)
    for operand in node.inputs:
        yield from aligned(operand, node, but=reduced)
    for value in (*node.inputs, node):
        yield from _blocks(value, reduced, node, f"{node.op} reduces over it")


def _blocks(value: Node, axes: tuple[int, ...], node: Node, reason: str) -> Facts:
    """The axes of a result, in an operand that broadcasts to it."""
    shift = node.shape.rank - value.shape.rank
    yield from (Block((value, a - shift), reason) for a in axes if a - shift >= 0)


@rule("sum", "mean", "max", "min", "prod", "any", "all", "log_sum_exp")
def _reduction(node: Node) -> Facts:
    yield from _reduced(node, is_sum=True)


@rule("argmax", "argmin")
def _index_of(node: Node) -> Facts:
    yield from _reduced(node, is_sum=False)


def _reduced(node: Node, *, is_sum: bool) -> Facts:
    (x,) = node.inputs
    axes = _axes(node, x.shape.rank)
    kept = [a for a in range(x.shape.rank) if a not in axes]
    keeps = node.shape.rank == x.shape.rank
    for place, axis in enumerate(kept):
        yield Tie((x, axis), (node, axis if keeps else place))
    for axis in axes:
        reason = f"{node.op} looks for a position along it"
        yield Summed((x, axis), node) if is_sum else Block((x, axis), reason)


def _axes(node: Node, rank: int) -> tuple[int, ...]:
    given: Any = node.attrs.get("axes", node.attrs.get("axis"))
    if given is None:
        return tuple(range(rank))
    return tuple(a % rank for a in (given if isinstance(given, tuple) else (given,)))  # pyright: ignore[reportUnknownVariableType]


@rule("cumsum", "cumprod", "cummax", "cummin", "sort", "argsort", "flip")
def _along(node: Node) -> Facts:
    x = node.inputs[0]
    axes = _axes(node, x.shape.rank)
    yield from aligned(x, node, but=axes)
    for value in (x, node):
        yield from _blocks(value, axes, node, f"{node.op} runs along it")


# -- movements ------------------------------------------------------------------------------------


@rule("transpose")
def _transpose(node: Node) -> Facts:
    for made, axis in enumerate(node.attrs["perm"]):
        yield Tie((node.inputs[0], axis), (node, made))


@rule("reshape", "squeeze", "expand_dims")
def _reshape(node: Node) -> Facts:
    """Axes that are split or joined are a run of elements: the first axes of both sides are split
    alike, into parts that divide both; the others are inside of each part."""
    x = node.inputs[0]
    for ours, theirs in _runs(x.shape.dims, node.shape.dims):
        yield from _run((x, ours), (node, theirs))


def _run(a: tuple[Node, list[int]], b: tuple[Node, list[int]]) -> Facts:
    (x, ours), (y, theirs) = a, b
    if ours and theirs:
        yield Tie((x, ours[0]), (y, theirs[0]))
    for value, axes in ((x, ours[1:]), (y, theirs[1:])):
        yield from (Block((value, i), "a reshape joins it with the axis before") for i in axes)


def _runs(old: tuple[DimLike, ...], new: tuple[DimLike, ...]) -> list[tuple[list[int], list[int]]]:
    """The axes of both sides, in runs of equal products; those of size 1 are in none."""
    ours = [i for i, d in enumerate(old) if d != 1]
    theirs = [i for i, d in enumerate(new) if d != 1]
    found: list[tuple[list[int], list[int]]] = []
    while ours and theirs and old[ours[-1]] == new[theirs[-1]]:
        found.append(([ours.pop()], [theirs.pop()]))
    while ours and theirs:
        a, b = _first_run([old[i] for i in ours], [new[i] for i in theirs])
        found.append((ours[:a], theirs[:b]))
        ours, theirs = ours[a:], theirs[b:]
    return [*found, *([(ours, theirs)] if ours or theirs else [])]


def _first_run(ours: list[DimLike], theirs: list[DimLike]) -> tuple[int, int]:
    """How many dims of each side have one product, as few as there are. Where products have names
    in them, it is not known which is less, and the left one grows last."""
    a, b = 1, 1
    p, q = ours[0], theirs[0]
    while p != q and (a, b) != (len(ours), len(theirs)):
        if a < len(ours) and (b == len(theirs) or _is_less(p, q)):
            p, a = p * ours[a], a + 1
        else:
            q, b = q * theirs[b], b + 1
    return a, b


def _is_less(p: DimLike, q: DimLike) -> bool:
    return isinstance(p, int) and isinstance(q, int) and p < q


@rule("expand")
def _expand(node: Node) -> Facts:
    yield from aligned(node.inputs[0], node)


@rule("narrow", "slice", "pad", "tile", "trilu", "stop_gradient")
def _part(node: Node) -> Facts:
    """Axes that keep their size keep their elements, but where a slice turns them round."""
    x = node.inputs[0]
    steps: Any = node.attrs.get("steps") or (1,) * x.shape.rank
    for axis, (old, new) in enumerate(zip(x.shape.dims, node.shape.dims)):
        if old == new and (node.op != "slice" or steps[axis] == 1):
            yield Tie((x, axis), (node, axis))
        else:
            reason = f"{node.op} takes a part of it"
            yield from (Block((x, axis), reason), Block((node, axis), reason))


@rule("concat")
def _concat(node: Node) -> Facts:
    axis = node.attrs["axis"] % node.shape.rank
    for x in node.inputs:
        yield from aligned(x, node, but=(axis,))
    for value in (*node.inputs, node):
        yield Block((value, axis), "a concat joins values along it")


@rule("stack")
def _stack(node: Node) -> Facts:
    new = node.attrs["axis"] % node.shape.rank
    yield Block((node, new), "a stack puts values along it")
    for x in node.inputs:
        for axis in range(x.shape.rank):
            yield Tie((x, axis), (node, axis + (axis >= new)))


@rule("split")
def _split(node: Node) -> Facts:
    axis = node.attrs["axis"] % node.inputs[0].shape.rank
    yield Block((node.inputs[0], axis), "a split cuts it into parts")


@rule("item")
def _item(node: Node) -> Facts:
    """The parts of a split have the axes of what is split; of other ops nothing is known."""
    made = node.inputs[0]
    if made.op != "split":
        yield from (
            Block((node, a), f"{made.op} needs every axis whole") for a in range(node.shape.rank)
        )
        return
    axis = made.attrs["axis"] % node.shape.rank
    yield Block((node, axis), "a split cuts it into parts")
    yield from aligned(made.inputs[0], node, but=(axis,))


# -- indexing -------------------------------------------------------------------------------------


@rule("gather", "embedding")
def _gather(node: Node) -> Facts:
    x, indices = node.inputs
    axis = node.attrs.get("axis", 0) % x.shape.rank
    count = indices.shape.rank
    yield Block((x, axis), f"{node.op} looks its entries up")
    for a in range(x.shape.rank):
        if a != axis:
            yield Tie((x, a), (node, a if a < axis else a + count - 1))
    for a in range(count):
        yield Tie((indices, a), (node, axis + a))


@rule("take_along_axis")
def _take_along(node: Node) -> Facts:
    axis = node.attrs["axis"] % node.shape.rank
    for x in node.inputs:
        yield from aligned(x, node, but=(axis,))
        yield Block((x, axis), "take_along_axis looks its entries up")
    yield Block((node, axis), "take_along_axis looks its entries up")


# -- products -------------------------------------------------------------------------------------


@rule("matmul", "wide_matmul", "fused_matmul_bias_act")
def _matmul(node: Node) -> Facts:
    x, y, *bias = node.inputs
    if min(x.shape.rank, y.shape.rank) < 2:
        yield from blocked(node, "a product of vectors needs every axis whole")
        return
    last = node.shape.rank - 1
    yield Tie((x, x.shape.rank - 1), (y, y.shape.rank - 2))
    yield Summed((x, x.shape.rank - 1), node)
    yield Columns((y, y.shape.rank - 1), node)
    yield Tie((y, y.shape.rank - 1), (node, last))
    yield Tie((x, x.shape.rank - 2), (node, last - 1))
    for operand in (x, y):
        yield from _batch(operand, node)
    for operand in bias:
        yield from aligned(operand, node)


def _batch(operand: Node, node: Node) -> Facts:
    """The axes before the last two, which broadcast."""
    shift = node.shape.rank - operand.shape.rank
    for axis in range(operand.shape.rank - 2):
        if operand.shape.dims[axis] != 1 or node.shape.dims[axis + shift] == 1:
            yield Tie((operand, axis), (node, axis + shift))


@rule("dot_general")
def _dot_general(node: Node) -> Facts:
    """The result has the batch axes, then what is left of x, then what is left of y."""
    x, y = node.inputs
    pairs = list(zip(node.attrs["lhs_batch"], node.attrs["rhs_batch"]))
    gone = list(zip(node.attrs["lhs_contract"], node.attrs["rhs_contract"]))
    for i, (a, b) in enumerate(pairs):
        yield from (Tie((x, a), (node, i)), Tie((y, b), (node, i)))
    for a, b in gone:
        yield from (Tie((x, a), (y, b)), Summed((x, a), node))
    used = [{a for a, _ in pairs + gone}, {b for _, b in pairs + gone}]
    rows = [a for a in range(x.shape.rank) if a not in used[0]]
    columns = [b for b in range(y.shape.rank) if b not in used[1]]
    for i, a in enumerate(rows, len(pairs)):
        yield Tie((x, a), (node, i))
    for i, b in enumerate(columns, len(pairs) + len(rows)):
        yield from (Tie((y, b), (node, i)), Columns((y, b), node))


# -- attention ------------------------------------------------------------------------------------


@rule("attention")
def _attention(node: Node) -> Facts:
    """Heads are independent; query heads that share a key head stay with it, so that parts divide
    the number of key heads. Packed heads are one axis of heads · depth."""
    q, k, v, *mask = node.inputs
    heads = node.attrs["num_heads"]
    shared = node.attrs["kv_heads"] or heads
    axis = 1 if node.shape.rank == 4 else 2
    for value in (q, k, v):
        yield Tie((value, 0), (node, 0))
        yield Tie((value, axis), (node, axis), (shared, heads))
        yield from _attended(value, node.op, axis)
    yield from _attended(node, node.op, axis)
    for each in mask:
        yield from _mask(each, node, axis)


def _attended(value: Node, op: str, heads: int) -> Facts:
    others = [a for a in range(1, value.shape.rank) if a != heads]
    yield from (Block((value, a), f"{op} reads it whole") for a in others)


def _mask(mask: Node, node: Node, heads: int) -> Facts:
    """A mask broadcasts to [batch, heads, queries, keys]; of rank 2, a custom one is [batch,
    keys]."""
    dims, rank = mask.shape.dims, mask.shape.rank
    is_by_batch = rank == 2 and node.attrs["mask_kind"] == "custom"
    batch = 0 if is_by_batch or rank == 4 else None
    if batch is not None and dims[batch] != 1:
        yield Tie((mask, batch), (node, 0))
    if rank >= 3 and dims[rank - 3] != 1:
        yield Tie((mask, rank - 3), (node, heads))


@rule("rope")
def _rope(node: Node) -> Facts:
    """Heads turn by themselves; the halves of one are read together. Angles are the same for all
    heads, and small."""
    x = node.inputs[0]
    last = x.shape.rank - 1
    yield from aligned(x, node, but=(last,))
    depth = node.attrs["head_dim"]
    if depth is None:
        reason = "rope reads the halves of a head"
        yield from (Block((x, last), reason), Block((node, last), reason))
    else:
        yield Tie((x, last), (node, last), (x.shape.dims[last] // depth,))
    for angles in node.inputs[1:]:
        for axis in range(angles.shape.rank - 1):
            shift = x.shape.rank - angles.shape.rank
            if angles.shape.dims[axis] != 1 and axis + shift >= 0:
                yield Tie((angles, axis), (node, axis + shift))


# -- images ---------------------------------------------------------------------------------------


@rule("conv", "wide_conv", "conv_transpose", "fused_conv_bias_act", "depthwise_conv1d_causal",
      "max_pool", "avg_pool", "lp_pool", "resize", "batch_norm", "group_norm", "instance_norm",
      "layer_norm_2d", "global_avg_pool", "global_max_pool", "depth_to_space", "space_to_depth",
      "local_response_norm", "im2col")  # fmt: skip
def _images(node: Node) -> Facts:
    """Images are independent; what is inside of one is read by neighbours."""
    x, *weights = node.inputs
    yield Tie((x, 0), (node, 0))
    reason = f"{node.op} reads it whole"
    for value in (x, node):
        yield from (Block((value, a), reason) for a in range(1, value.shape.rank))
    for value in weights:
        yield from (Block((value, a), reason) for a in range(value.shape.rank))
