"""Kernel selection: the forms that a step can be lowered to, in order, each taken or refused.

A step is one loop nest, a GEMM with its prologue and epilogue, a convolution, a dedicated kernel,
or one of these followed by a loop nest. What fits none of them runs as a subprogram of smaller
steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from rlx.backends.cpu.codegen.loop.emit import legal
from rlx.backends.cpu.codegen.lowp.packed_matmul import packed_in
from rlx.backends.cpu.kernels import dedicated, has_dedicated
from rlx.backends.cpu.library import strided_copy
from rlx.backends.cpu.program import gemm_sequence as gemm
from rlx.backends.cpu.program.loop_task import copy_kernel, legal_loop_task, loop_task
from rlx.backends.cpu.program.task import (
    Buffer,
    KernelForm,
    KernelSequence,
    RefusedForm,
    Step,
    Task,
    buffers,
)
from rlx.core.dim import DimLike, is_static
from rlx.core.layout import Layout
from rlx.core.shape import Shape
from rlx.ir.mir import Node
from rlx.kernel.expr import Kernel
from rlx.kernel.lower.contract import lower_contract, lower_contract_and_loop, region_of
from rlx.kernel.lower.conv import has_conv
from rlx.kernel.lower.loop import body_of, lower_loop
from rlx.kernel.refusal import Refusal, attempt
from rlx.kernel.split_reduction import split_reduction
from rlx.ops.op import Kind

MAX_CONCAT_OPERANDS = 16
"""Operands of unknown sizes that one loop nest concatenates."""

Maker = Callable[[Step, str], KernelSequence | Refusal]


@dataclass(frozen=True, slots=True)
class Candidate:
    """A kernel form, and what makes the kernel sequence of a step in it."""

    form: KernelForm
    make: Maker


@dataclass(frozen=True, slots=True)
class NoKernel:
    """No form takes the step as a whole."""

    refused: tuple[RefusedForm, ...]

    @property
    def reason(self) -> str:
        """That of the preferred form."""
        return self.refused[0].reason


def select_kernels(step: Step, name: str) -> KernelSequence | NoKernel:
    """The first candidate that takes the step, as native tasks whose functions begin with `name`;
    with it the refusals of those before it."""
    step = _without_transpose(step)
    refused: list[RefusedForm] = []
    for candidate in candidates(step):
        # emitters meet some limits in the middle of a function: reported as a refusal, too
        made = attempt(lambda c=candidate: c.make(step, name))
        if not isinstance(made, Refusal):
            return replace(made, form=candidate.form, refused=tuple(refused))
        refused.append(RefusedForm(candidate.form, made.reason))
    return NoKernel(tuple(refused))


def candidates(step: Step) -> tuple[Candidate, ...]:
    """The kernel forms to try for a step, the preferred one first."""
    if (make := dedicated(step.node.op)) is not None:
        return (Candidate(KernelForm.DEDICATED, make),)
    if _is_wide_concat(step.node):
        return (Candidate(KernelForm.STRIDED_COPIES, _copies),)
    loop = Candidate(KernelForm.LOOP, loop_sequence)
    dedicated_and_loop = Candidate(KernelForm.DEDICATED_AND_LOOP, _dedicated_and_loop)
    if has_conv(step.node):
        return Candidate(KernelForm.CONVOLUTION, conv_sequence), loop
    if packed_in(step.node) is not None:
        return dedicated_and_loop, loop
    return (
        loop,
        Candidate(KernelForm.GEMM, gemm_sequence),
        Candidate(KernelForm.GEMM_AND_LOOP, _gemm_and_loop),
        dedicated_and_loop,
    )


def dedicated_anchor(node: Node) -> Node:
    """The op with a dedicated kernel whose result a region only transposes; else the node."""
    body = body_of(node)
    if node.decl.kind is not Kind.REGION or len(body.outputs) != 1:
        return node
    found = body.outputs[0]
    while found.op == "transpose":
        (found,) = found.inputs
    is_it = has_dedicated(found.op) and not found.has_items
    return found if is_it and found.inputs == tuple(body.inputs) else node


def _without_transpose(step: Step) -> Step:
    """The same step of that op: its kernel stores in the layout of the region's result."""
    anchor = dedicated_anchor(step.node)
    if anchor is step.node:
        return step
    (transposed,), (layout,) = body_of(step.node).outputs, step.results
    while transposed is not anchor:
        layout = layout.permuted(_inverse(transposed.attrs["perm"]))
        (transposed,) = transposed.inputs
    return replace(step, node=anchor, results=(layout,))


def loop_sequence(step: Step, name: str) -> KernelSequence | Refusal:
    """The step as one loop nest, or as several where reductions are long with few results."""
    lowered = lower_loop(step.node, step.operands, step.results)
    if isinstance(lowered, Refusal):
        return lowered
    kernel, once = legal(lowered), step.prologue_only
    every = buffers(len(kernel.operands), len(kernel.results))
    given, made = list(every[: len(kernel.operands)]), every[len(kernel.operands) :]
    tasks: list[Task] = []
    temps: list[DimLike] = []
    while (parts := split_reduction(kernel)) is not None:
        partial, kernel = parts
        between = [Buffer("temp", len(temps) + i) for i in range(len(partial.results))]
        part = f"{name}.part{len(tasks)}"
        task = legal_loop_task(partial, given, between, step.machine, part, prologue_only=once)
        tasks.append(task)
        temps += [r.size_bytes for r in partial.results]
        given += between
    tasks.append(legal_loop_task(kernel, given, made, step.machine, name, prologue_only=once))
    return KernelSequence(tuple(tasks), tuple(temps))


def _is_wide_concat(node: Node) -> bool:
    """Is it a concat of many values of unknown sizes? A loop nest over its result would have a
    loop for each of them, and every boundary a sum of sizes to compare with."""
    return (
        node.op == "concat"
        and len(node.inputs) > MAX_CONCAT_OPERANDS
        and not all(map(_has_static_dims, node.inputs))
    )


def _has_static_dims(node: Node) -> bool:
    return all(map(is_static, node.shape.dims))


def _copies(step: Step, name: str) -> KernelSequence:
    """Each operand of a concat copied to its slice of the result, by code that they share."""
    axis, dtype, start = step.node.attrs["axis"], step.node.shape.dtype, 0
    *given, made = buffers(len(step.operands), 1)
    tasks: list[Task] = []
    for buffer, layout in zip(given, step.operands):
        part = step.results[0].sliced(axis, start, layout.dims[axis])
        source = strided_copy.BufferView(buffer, layout, dtype)
        target = strided_copy.BufferView(made, part, dtype)
        task = strided_copy.copy_task(source, target, step.machine, f"{name}.{buffer.index}")
        tasks.append(task)
        start = start + layout.dims[axis]
    return KernelSequence(tuple(tasks))


def conv_sequence(step: Step, name: str) -> KernelSequence | Refusal:
    """The step as a convolution with its prologue and epilogue."""
    return gemm.make_conv(step, name)


def gemm_sequence(step: Step, name: str) -> KernelSequence | Refusal:
    """The step as a GEMM with its prologue and epilogue."""
    contract = lower_contract(step.node, step.operands, step.results)
    return contract if isinstance(contract, Refusal) else gemm.make(step, contract, name)


def _gemm_and_loop(step: Step, name: str) -> KernelSequence | Refusal:
    """A GEMM, and the loop nest of its epilogue."""
    lowered = lower_contract_and_loop(step.node, step.operands, step.results)
    if isinstance(lowered, Refusal):
        return lowered
    contract, after = lowered
    made = gemm.make(step, contract, f"{name}.product")
    return _then_loop(step, name, made, contract.results[0].size_bytes, after)


def _dedicated_and_loop(step: Step, name: str) -> KernelSequence | Refusal:
    """An op with a dedicated kernel, of operands of the region, and the loop nest of the rest."""
    body, anchor = body_of(step.node), _dedicated_in(step.node)
    if anchor is None:
        return Refusal(f"{step.node.label}: no single op of it has a dedicated kernel")
    operands = [body.inputs.index(i) for i in anchor.inputs if i in body.inputs]
    if len(operands) < len(anchor.inputs):
        return Refusal(f"{anchor.label}: what precedes it is no part of its kernel")
    between = _intermediate_layout(step, anchor)
    rest = region_of(body, body.outputs, anchor)
    after = lower_loop(rest, [*step.operands, between], step.results)
    if isinstance(after, Refusal):
        return after
    own = replace(
        step, node=anchor, operands=tuple(step.operands[i] for i in operands), results=(between,),
        constants=frozenset(i for i, p in enumerate(operands) if p in step.constants),
    )  # fmt: skip
    make = dedicated(anchor.op)
    assert make is not None
    made = _with_operands(make(own, f"{name}.own"), operands)
    return _then_loop(step, name, made, anchor.shape.size_bytes, after)


def _dedicated_in(node: Node) -> Node | None:
    """The one op of a region with a dedicated kernel; None where there is none, or several."""
    if node.decl.kind is not Kind.REGION:
        return None
    packed = packed_in(node)
    own = [n for n in body_of(node).order() if has_dedicated(n.op)]
    found = own if packed is None else [packed]
    return found[0] if len(found) == 1 and not found[0].has_items else None


def _intermediate_layout(step: Step, anchor: Node) -> Layout:
    """The layout of the op's result: its axes in the order of the region's, if that has the
    same."""
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


def _with_operands(made: KernelSequence, operands: list[int]) -> KernelSequence:
    """The kernel sequence of a node of a region, with the region's operands of these numbers."""

    def moved(task: Task) -> Task:
        given = (
            Buffer(b.kind, operands[b.index]) if b.kind == "operand" else b for b in task.buffers
        )
        return replace(task, buffers=tuple(given))

    packed = tuple(replace(p, task=moved(p.task)) for p in made.packed)
    return replace(made, tasks=tuple(map(moved, made.tasks)), packed=packed)


def _then_loop(
    step: Step, name: str, made: KernelSequence, size: DimLike, after: Kernel
) -> KernelSequence:
    """The first kernel's result in a temporary, and the loop nest that reads it there."""
    between = len(made.temps)
    tasks = tuple(replace(t, buffers=_to_temp(t.buffers, between)) for t in made.tasks)
    operands = (*buffers(len(after.operands) - 1, 0), Buffer("temp", between))
    results = tuple(Buffer("result", i) for i in range(len(after.results)))
    last = loop_task(after, operands, results, step.machine, name)
    return KernelSequence((*tasks, last), (*made.temps, size), made.packed)


def _to_temp(given: tuple[Buffer, ...], to: int) -> tuple[Buffer, ...]:
    return tuple(Buffer("temp", to) if b.kind == "result" else b for b in given)


def copy_task(shape: Shape, layout: Layout, step: Step, name: str) -> Task:
    """A strided operand made contiguous: operand 0 into result 0."""
    kernel = copy_kernel(shape, layout, Layout.contiguous(shape.dims))
    return loop_task(kernel, [Buffer("operand", 0)], [Buffer("result", 0)], step.machine, name)
