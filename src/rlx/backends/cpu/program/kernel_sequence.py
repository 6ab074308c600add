"""Steps as recipes: a loop nest, a product, an algorithm of its own, or a product and a loop."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rlx.backends.cpu.codegen.loop.emit import legal
from rlx.backends.cpu.codegen.lowp.packed_matmul import packed_in
from rlx.backends.cpu.kernels import dedicated, has_dedicated
from rlx.backends.cpu.library import strided_copy as walk
from rlx.backends.cpu.program import gemm_sequence as products
from rlx.backends.cpu.program.loop_task import copy_kernel, legal_loop_task, loop_task
from rlx.backends.cpu.program.task import Buffer, KernelSequence, Step, Task, buffers
from rlx.core.dim import DimLike, is_static
from rlx.core.errors import UnsupportedError
from rlx.core.layout import Layout
from rlx.core.shape import Shape
from rlx.ir.mir import Node
from rlx.kernel.contract import Contract
from rlx.kernel.expr import Kernel
from rlx.kernel.lower.contract import lower_contract, lower_contract_and_loop, region_of
from rlx.kernel.lower.conv import has_conv
from rlx.kernel.lower.loop import body_of, lower_loop
from rlx.kernel.split_reduction import split_reduction
from rlx.ops.op import Kind

MAX_JOINED = 16
"""Values of unknown sizes that one loop nest joins."""


class NoKernel(UnsupportedError):
    """The step is no kernel as a whole; it says why."""


def kernel_sequence_of(step: Step, name: str) -> KernelSequence:
    """How the step runs, as native tasks whose functions begin with `name`."""
    step = _alone(step)
    if (make := dedicated(step.node.op)) is not None:
        return make(step, name)
    if _is_wide_join(step.node):
        return _join_recipe(step, name)
    if has_conv(step.node):
        ways = (conv_sequence, loop_sequence)
    elif packed_in(step.node) is not None:
        ways = (_special_recipe, loop_sequence)
    else:
        ways = (loop_sequence, gemm_sequence, _apart_recipe, _special_recipe)
    reasons: list[str] = []
    for way in ways:
        try:
            return way(step, name)
        except UnsupportedError as reason:
            reasons.append(str(reason))
    raise NoKernel(reasons[0])


def alone(node: Node) -> Node:
    """The op with a kernel of its own whose result a region only turns round; else the node."""
    body = body_of(node)
    if node.decl.kind is not Kind.REGION or len(body.outputs) != 1:
        return node
    found = body.outputs[0]
    while found.op == "transpose":
        (found,) = found.inputs
    is_it = has_dedicated(found.op) and not found.has_items
    return found if is_it and found.inputs == tuple(body.inputs) else node


def _alone(step: Step) -> Step:
    """The same step of that op: its kernel writes where the region's result is wanted."""
    own = alone(step.node)
    if own is step.node:
        return step
    (turned,), (layout,) = body_of(step.node).outputs, step.results
    while turned is not own:
        layout = layout.permuted(_inverse(turned.attrs["perm"]))
        (turned,) = turned.inputs
    return replace(step, node=own, results=(layout,))


def loop_sequence(step: Step, name: str) -> KernelSequence:
    """The step as one loop nest, or as several where folds are long and few."""
    kernel = legal(lower_loop(step.node, step.operands, step.results))
    every = buffers(len(kernel.operands), len(kernel.results))
    given, made = list(every[: len(kernel.operands)]), every[len(kernel.operands) :]
    tasks: list[Task] = []
    temps: list[DimLike] = []
    while (parts := split_reduction(kernel)) is not None:
        partial, kernel = parts
        between = [Buffer("temp", len(temps) + i) for i in range(len(partial.results))]
        part = f"{name}.part{len(tasks)}"
        task = legal_loop_task(
            partial, given, between, step.machine, part, prologue_only=step.prologue_only
        )
        tasks.append(task)
        temps += [r.size_bytes for r in partial.results]
        given += between
    tasks.append(
        legal_loop_task(kernel, given, made, step.machine, name, prologue_only=step.prologue_only)
    )
    return KernelSequence(tuple(tasks), tuple(temps))


def _is_wide_join(node: Node) -> bool:
    """Is it a concat of many values whose sizes are not known? A loop nest over its result would
    have a piece of code for each of them, and every boundary a sum of sizes to compare with."""
    return (
        node.op == "concat"
        and len(node.inputs) > MAX_JOINED
        and not all(map(_is_known, node.inputs))
    )


def _is_known(node: Node) -> bool:
    return all(map(is_static, node.shape.dims))


def _join_recipe(step: Step, name: str) -> KernelSequence:
    """Each operand copied to its slice of the result, by code that they share."""
    axis, dtype, start = step.node.attrs["axis"], step.node.shape.dtype, 0
    *given, made = buffers(len(step.operands), 1)
    tasks: list[Task] = []
    for buffer, layout in zip(given, step.operands):
        part = step.results[0].sliced(axis, start, layout.dims[axis])
        places = walk.BufferView(buffer, layout, dtype), walk.BufferView(made, part, dtype)
        tasks.append(walk.copy_task(*places, step.isa, f"{name}.{buffer.index}"))
        start = start + layout.dims[axis]
    return KernelSequence(tuple(tasks))


def conv_sequence(step: Step, name: str) -> KernelSequence:
    return products.make_conv(step, name)


def gemm_sequence(step: Step, name: str) -> KernelSequence:
    """The step as a product with what is done before and after it."""
    contract = lower_contract(step.node, step.operands, step.results)
    return products.make(step, contract, name)


def _apart_recipe(step: Step, name: str) -> KernelSequence:
    """A product, and the loop nest of what follows it."""
    contract, after = lower_contract_and_loop(step.node, step.operands, step.results)
    return _apart(step, name, contract, after)


def _special_recipe(step: Step, name: str) -> KernelSequence:
    """An op with a kernel of its own, of operands, and the loop nest of what follows it."""
    body, anchor = body_of(step.node), _special_in(step.node)
    if anchor is None:
        raise NoKernel(f"{step.node.label}: no single op of it has a kernel of its own")
    places = [body.inputs.index(i) for i in anchor.inputs if i in body.inputs]
    if len(places) < len(anchor.inputs):
        raise NoKernel(f"{anchor.label}: what comes before it is no part of its kernel")
    between = _between(step, anchor)
    rest = region_of(body, body.outputs, anchor)
    after = lower_loop(rest, [*step.operands, between], step.results)
    own = replace(
        step, node=anchor, operands=tuple(step.operands[i] for i in places), results=(between,),
        constants=frozenset(i for i, p in enumerate(places) if p in step.constants),
    )  # fmt: skip
    make = dedicated(anchor.op)
    assert make is not None
    made = make(own, f"{name}.own")
    return _followed(step, name, _with_operands(made, places), anchor.shape.size_bytes, after)


def _special_in(node: Node) -> Node | None:
    """The one op of a region with a kernel of its own; None where there is none, or several."""
    if node.decl.kind is not Kind.REGION:
        return None
    packed = packed_in(node)
    own = [n for n in body_of(node).order() if has_dedicated(n.op)]
    found = own if packed is None else [packed]
    return found[0] if len(found) == 1 and not found[0].has_items else None


def _between(step: Step, anchor: Node) -> Layout:
    """Where the op's result lies: its axes in the order of the region's, if that has the same."""
    wanted, layout = body_of(step.node).outputs[0], step.results[0]
    while wanted.op == "transpose":
        layout = layout.permuted(_inverse(wanted.attrs["perm"]))
        (wanted,) = wanted.inputs
    plain = Layout.contiguous(anchor.shape.dims)
    if layout.dims != anchor.shape.dims or not all(map(is_static, layout.strides)):
        return plain
    order = sorted(range(len(layout.dims)), key=lambda axis: -int(layout.strides[axis]))
    return Layout.contiguous([layout.dims[a] for a in order]).permuted(_inverse(order))


def _inverse(perm: Sequence[int]) -> list[int]:
    return [perm.index(axis) for axis in range(len(perm))]


def _with_operands(made: KernelSequence, places: list[int]) -> KernelSequence:
    """The recipe of a node of a region, whose operands are the region's at these places."""

    def moved(task: Task) -> Task:
        given = (
            Buffer(b.kind, places[b.index]) if b.kind == "operand" else b for b in task.buffers
        )
        return replace(task, buffers=tuple(given))

    packed = tuple(replace(p, task=moved(p.task)) for p in made.packed)
    return replace(made, tasks=tuple(map(moved, made.tasks)), packed=packed)


def _apart(step: Step, name: str, contract: Contract, after: Kernel) -> KernelSequence:
    made = products.make(step, contract, f"{name}.product")
    return _followed(step, name, made, contract.results[0].size_bytes, after)


def _followed(
    step: Step, name: str, made: KernelSequence, size: DimLike, after: Kernel
) -> KernelSequence:
    """The product into a temporary, and the loop nest that reads it there."""
    between = len(made.temps)
    tasks = tuple(replace(t, buffers=_moved(t.buffers, between)) for t in made.tasks)
    operands = (*buffers(len(after.operands) - 1, 0), Buffer("temp", between))
    results = tuple(Buffer("result", i) for i in range(len(after.results)))
    last = loop_task(after, operands, results, step.machine, name)
    return KernelSequence((*tasks, last), (*made.temps, size), made.packed)


def _moved(given: tuple[Buffer, ...], to: int) -> tuple[Buffer, ...]:
    return tuple(Buffer("temp", to) if b.kind == "result" else b for b in given)


def copy_task(shape: Shape, layout: Layout, step: Step, name: str) -> Task:
    """What lies apart, side by side: operand 0 into result 0."""
    kernel = copy_kernel(shape, layout, Layout.contiguous(shape.dims))
    return loop_task(kernel, [Buffer("operand", 0)], [Buffer("result", 0)], step.machine, name)
