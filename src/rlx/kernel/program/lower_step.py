"""Steps as kernels: a loop nest, a contraction with its prologue and epilogue, a convolution, a
named algorithm, or one of these followed by a loop nest."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from rlx.core.dim import DimLike, is_static
from rlx.core.layout import Layout
from rlx.core.shape import Shape
from rlx.ir.mir import Graph, Node
from rlx.kernel.attention import Attention
from rlx.kernel.contract import Contract
from rlx.kernel.expr import (
    Accumulator,
    Affine,
    Axis,
    Choose,
    Expr,
    Exprs,
    Kernel,
    Load,
    Store,
)
from rlx.kernel.lower.attention import (
    attention_region,
    lower_attention,
    lower_attention_region,
)
from rlx.kernel.lower.contract import (
    lower_contract,
    lower_contract_and_loop,
    lower_few_rows,
    region_of,
)
from rlx.kernel.lower.conv import lower_conv
from rlx.kernel.lower.loop import body_of, lower_loop
from rlx.kernel.lower.scan import lower_scan
from rlx.kernel.program.forms import AnyKernel, Conv, Copy, Special
from rlx.kernel.program.program import KernelCall, KernelSequence, Step
from rlx.kernel.program.schedule import Buffer, buffers
from rlx.kernel.refusal import Refusal
from rlx.kernel.rewrite import Rewriter
from rlx.kernel.scan import Scan
from rlx.ops.op import Kind

HasSpecial = Callable[[str], bool]
"""Does the target bring an algorithm for the op of this name?"""


@dataclass(frozen=True, slots=True)
class LoweredConv:
    """A convolution as a contraction, and the kernel that stages its image, if one must."""

    image: Kernel | None
    contract: Contract
    has_windows: bool
    """Are its rows positions of windows, for an implicit GEMM?"""


# -- whole steps ----------------------------------------------------------------------------------


def loop_kernels(step: Step) -> KernelSequence | Refusal:
    """The step as one loop nest."""
    kernel = lower_loop(step.node, step.operands, step.results)
    if isinstance(kernel, Refusal):
        return kernel
    call = _call(step, kernel, buffers(0, len(step.results)))
    return KernelSequence((replace(call, prologue_only=step.prologue_only),))


def contract_kernels(step: Step) -> KernelSequence | Refusal:
    """The step as a contraction with its prologue and epilogue."""
    contract = lower_contract(step.node, step.operands, step.results)
    return contract if isinstance(contract, Refusal) else _contraction(step, contract)


def few_rows_kernels(step: Step) -> KernelSequence | Refusal:
    """The step as a contraction with norms of its rows before it, or gates behind it."""
    contract = lower_few_rows(step.node, step.operands, step.results)
    if isinstance(contract, Refusal):
        return contract
    if not has_simple_epilogue(contract):
        return Refusal(f"{step.node.label}: what follows its product is no elementwise work")
    return KernelSequence((_call(step, contract, buffers(0, len(contract.results))),))


def conv_kernels(step: Step, lowered: LoweredConv | Refusal) -> KernelSequence | Refusal:
    """The step as a convolution with its prologue and epilogue, lowered as the target likes it."""
    if isinstance(lowered, Refusal):
        return lowered
    image = lowered.image
    if image is None:
        return _contraction(step, lowered.contract, has_windows=lowered.has_windows)
    staged = _call(step, image, [Buffer("temp", 0)])
    after = _contraction(step, lowered.contract, (Buffer("temp", 0),), lowered.has_windows)
    return replace(after, calls=(staged, *after.calls), temps=(_bytes(image), *after.temps))


def plain_conv_kernels(step: Step) -> KernelSequence | Refusal:
    """The step as a convolution whose columns are the last spatial axis."""
    made = lower_conv(step.node, step.operands, step.results)
    lowered = made if isinstance(made, Refusal) else LoweredConv(*made, has_windows=False)
    return conv_kernels(step, lowered)


def contract_and_loop_kernels(step: Step) -> KernelSequence | Refusal:
    """A contraction, and the loop nest of its epilogue."""
    lowered = lower_contract_and_loop(step.node, step.operands, step.results)
    if isinstance(lowered, Refusal):
        return lowered
    contract, after = lowered
    return _then_loop(step, _contraction(step, contract), contract.results[0].size_bytes, after)


def special_kernels(step: Step) -> KernelSequence:
    """The step as the form of its op, or as a named algorithm."""
    kernel = special_form(step.node, step.operands, step.results)
    if isinstance(kernel, Special):
        kernel = replace(kernel, written=step.written)
    return KernelSequence((_call(step, kernel, buffers(0, len(step.results))),))


def special_form(
    node: Node, operands: tuple[Layout, ...], results: tuple[Layout, ...]
) -> Attention | Scan | Special:
    """Attention or a scan, where the op is one; else its name is all there is to say."""
    lower = lower_attention if node.op == "attention" else lower_scan
    form = lower(node, operands, results)
    return Special(node, operands, results) if isinstance(form, Refusal) else form


def attention_kernels(step: Step) -> KernelSequence | Refusal:
    """A region that is attention of what it concatenates or turns: that is done where keys and
    queries are loaded."""
    found = attention_region(body_of(step.node))
    if isinstance(found, Refusal):
        return found
    shapes = [i.shape for i in step.node.inputs]
    kernel = lower_attention_region(found, step.operands, shapes, step.results[0])
    return KernelSequence((_call_on(step, kernel, found.operands, buffers(0, 1)),))


def special_and_loop_kernels(step: Step, anchor: Node | None) -> KernelSequence | Refusal:
    """A named algorithm on operands of the region, and the loop nest of the rest."""
    body = body_of(step.node)
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
    special = special_form(anchor, tuple(step.operands[i] for i in operands), (between,))
    first = _call_on(step, special, operands, buffers(0, 1))
    return _then_loop(step, KernelSequence((first,)), anchor.shape.size_bytes, after)


def concat_groups(step: Step, most: int) -> KernelSequence | Refusal:
    """A concat as loop nests of so many operands each: one nest has a loop for each of them, and
    compiling it takes longer than in proportion to them."""
    axis, start = step.node.attrs["axis"], 0
    calls: list[KernelCall] = []
    for first in range(0, len(step.operands), most):
        numbers = range(len(step.operands))[first : first + most]
        node = _concat([step.node.inputs[i].shape for i in numbers], axis)
        part = step.results[0].sliced(axis, start, node.shape.dims[axis])
        kernel = lower_loop(node, [step.operands[i] for i in numbers], [part])
        if isinstance(kernel, Refusal):
            return kernel
        calls.append(_call_on(step, kernel, numbers, buffers(0, 1)))
        start = start + node.shape.dims[axis]
    return KernelSequence(tuple(calls))


def _concat(shapes: Sequence[Shape], axis: int) -> Node:
    graph = Graph("concat")
    graph.traces_lines = False
    return graph.node(
        "concat", [graph.input(f"v{i}", s) for i, s in enumerate(shapes)], {"axis": axis}
    )


def concat_copies(step: Step) -> KernelSequence:
    """Each operand of a concat copied to its slice of the result: a loop nest over a result of
    many values of unknown sizes would compare a sum of sizes at every boundary."""
    axis, dtype, start = step.node.attrs["axis"], step.node.shape.dtype, 0
    calls: list[KernelCall] = []
    for i, layout in enumerate(step.operands):
        part = step.results[0].sliced(axis, start, layout.dims[axis])
        kernel = Copy(Shape(layout.dims, dtype), layout, part)
        calls.append(KernelCall(kernel, (Buffer("operand", i),), (Buffer("result", 0),)))
        start = start + layout.dims[axis]
    return KernelSequence(tuple(calls))


def contiguous_copy(shape: Shape, layout: Layout) -> KernelSequence:
    """A strided operand made contiguous: operand 0 into result 0."""
    kernel = copy_kernel(shape, layout, Layout.contiguous(shape.dims))
    call = KernelCall(kernel, (Buffer("operand", 0),), (Buffer("result", 0),))
    return KernelSequence((call,))


def copy_kernel(shape: Shape, given: Layout, to: Layout) -> Kernel:
    """A copy as a loop nest."""
    exprs = Exprs()
    axes = tuple(Axis(f"d{i}", d) for i, d in enumerate(shape.dims))
    value = exprs.load(0, _affine(given, axes), shape.dtype)
    return Kernel("copy", axes, (Store(0, _affine(to, axes), value),), (shape,), (shape,))


def _affine(layout: Layout, axes: tuple[Axis, ...]) -> Affine:
    terms = tuple((a, s) for a, s in zip(axes, layout.strides) if s != 0)
    return Affine(terms, layout.offset)


# -- parts of steps -------------------------------------------------------------------------------


def _call(
    step: Step,
    kernel: AnyKernel,
    made: Sequence[Buffer],
    more: tuple[Buffer, ...] = (),
) -> KernelCall:
    """A kernel on the step's operands, and on more behind them."""
    given = (*buffers(len(step.operands), 0), *more)
    return KernelCall(kernel, given, tuple(made), step.constants)


def _call_on(
    step: Step, kernel: AnyKernel, numbers: Sequence[int], made: Sequence[Buffer]
) -> KernelCall:
    """A kernel on some of the step's operands, in an order of its own."""
    given = tuple(Buffer("operand", i) for i in numbers)
    constants, inputs = (
        frozenset(i for i, p in enumerate(numbers) if p in some)
        for some in (step.constants, step.inputs)
    )
    return KernelCall(kernel, given, tuple(made), constants, inputs)


def _contraction(
    step: Step, contract: Contract, more: tuple[Buffer, ...] = (), has_windows: bool = False
) -> KernelSequence:
    """A contraction of the step's operands, and of more behind them. What cannot be done on the
    accumulators is a loop nest behind it."""
    made = buffers(0, len(contract.results))
    if contract.sums.is_complex:
        return KernelSequence((_call(step, contract.kernel(), made, more),))
    image = len(step.operands) if more else None
    if has_simple_epilogue(contract):
        kernel = Conv(contract, image) if has_windows else contract
        return KernelSequence((_call(step, kernel, made, more),))
    product, after = without_epilogue(contract)
    kernel = Conv(product, image) if has_windows else product
    between = Buffer("temp", len(more))
    first = _call(step, kernel, [between], more)
    last = _call(step, after, made, (*more, between))
    return KernelSequence((first, last), (_bytes(product),))


def _bytes(kernel: Kernel | Contract) -> DimLike:
    return kernel.results[0].size_bytes


def _then_loop(step: Step, first: KernelSequence, size: DimLike, after: Kernel) -> KernelSequence:
    """The first kernel's result in a temporary, and the loop nest that reads it there."""
    between = Buffer("temp", len(first.temps))
    calls = tuple(replace(c, results=_to(c.results, between)) for c in first.calls)
    last = _call(step, after, buffers(0, len(after.results)), (between,))
    return KernelSequence((*calls, last), (*first.temps, size))


def _to(results: tuple[Buffer, ...], between: Buffer) -> tuple[Buffer, ...]:
    return tuple(between if b.kind == "result" else b for b in results)


def has_simple_epilogue(contract: Contract) -> bool:
    """Can what follows the sum be done on the accumulators? Not where it gathers, chooses what
    to read, or makes complex numbers."""
    return not any(_is_more(n) for n in contract.epilogue)


def _is_more(node: Expr) -> bool:
    gathers = isinstance(node, Load) and bool(node.args)
    return gathers or isinstance(node, Choose) or node.dtype.is_complex


def without_epilogue(contract: Contract) -> tuple[Contract, Kernel]:
    """The product, contiguous, and the kernel that reads it as one more operand."""
    (total,) = (n for n in contract.epilogue if isinstance(n, Accumulator))
    layout = Layout.contiguous([a.extent for a in contract.outer])
    at = Affine(tuple((a, s) for a, s in zip(contract.outer, layout.strides) if s != 0))
    shape = Shape(layout.dims, total.dtype)
    product = replace(contract, stores=(Store(0, at, total),), results=(shape,))
    exprs = Exprs()
    number = len(contract.operands)
    rewriter = Rewriter(exprs, replaced={total: exprs.load(number, at, total.dtype)})
    stores = tuple(map(rewriter.store, contract.stores))
    operands = (*contract.operands, shape)
    return product, Kernel(contract.name, contract.outer, stores, operands, contract.results)


# -- named algorithms inside regions --------------------------------------------------------------


def special_anchor(node: Node, has_special: HasSpecial) -> Node:
    """The op with a dedicated kernel whose result a region only transposes; else the node."""
    body = body_of(node)
    if node.decl.kind is not Kind.REGION or len(body.outputs) != 1:
        return node
    found = body.outputs[0]
    while found.op == "transpose":
        (found,) = found.inputs
    is_it = has_special(found.op) and not found.has_items
    return found if is_it and found.inputs == tuple(body.inputs) else node


def without_transpose(step: Step, has_special: HasSpecial) -> Step:
    """The same step of that op: its kernel stores in the layout of the region's result."""
    anchor = special_anchor(step.node, has_special)
    if anchor is step.node:
        return step
    (transposed,), (layout,) = body_of(step.node).outputs, step.results
    while transposed is not anchor:
        layout = layout.permuted(_inverse(transposed.attrs["perm"]))
        (transposed,) = transposed.inputs
    return replace(step, node=anchor, results=(layout,))


def special_in(node: Node, has_special: HasSpecial) -> Node | None:
    """The one op of a region with a dedicated kernel; None where there is none, or several."""
    if node.decl.kind is not Kind.REGION:
        return None
    found = [n for n in body_of(node).order() if has_special(n.op)]
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
