"""Matrix products as recipes: which operand is packed, what is computed before, in which tiles.

What follows from weights alone is packed into panels once. Any other right operand is read where
it lies, or packed for each call where it must be or where it is read often. A left operand that is
computed is written down first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from rlx.backends.cpu.codegen.conv.implicit_gemm import emit_implicit_gemm, implicit_gemm_tiling
from rlx.backends.cpu.codegen.gemm.gemm import emit_gemm, legal
from rlx.backends.cpu.codegen.gemm.microkernel import Source
from rlx.backends.cpu.codegen.gemm.packing import (
    emit_pack,
    emit_pack_groups,
    needs_transpose,
    operands_read,
)
from rlx.backends.cpu.codegen.lowp.operand_types import (
    dot_group_size,
    factor_out_scale,
    with_stored_dtypes,
)
from rlx.backends.cpu.codegen.lowp.zero_point import (
    CorrectionSums,
    correct_zero_points,
    low_precision_conv,
    reads_of,
)
from rlx.backends.cpu.program.loop_task import loop_task
from rlx.backends.cpu.program.task import (
    Buffer,
    KernelSequence,
    PackedWeights,
    Step,
    Task,
    TaskKind,
    buffers,
)
from rlx.backends.cpu.schedule.gemm_tiling import (
    Tiling,
    has_few_output_channels,
    is_gemv,
    is_windowed,
    is_worth_packing,
    oriented,
    pack_kernel,
    panels_of,
    reads_only,
    steps_evenly,
    tiling_of,
)
from rlx.core.dim import DimLike
from rlx.core.layout import Layout
from rlx.core.shape import Shape
from rlx.cost.machine import Machine
from rlx.kernel.contract import Accumulator, Contract, Mover, extent_of, materialised
from rlx.kernel.expr import Affine, Choose, Expr, Exprs, Kernel, Load, Store
from rlx.kernel.lower.conv import lower_conv
from rlx.kernel.lower.nhwc_conv import (
    has_vector_columns,
    is_plain_gemm,
    lower_nhwc_conv,
    stores_nhwc,
)
from rlx.kernel.refusal import Refusal


def make(step: Step, contract: Contract, name: str) -> KernelSequence:
    """The kernel sequence of a contraction of the step."""
    return _Maker(step, contract, name).sequence()


def make_conv(step: Step, name: str) -> KernelSequence | Refusal:
    """The kernel sequence of a step with a convolution."""
    lowered = _lower_conv(step)
    if isinstance(lowered, Refusal):
        return lowered
    maker = _Maker(step, lowered.contract, name)
    maker.reads_windows = lowered.is_nhwc and not is_plain_gemm(lowered.contract)
    if lowered.image is not None:
        maker.stage_image(lowered.image)
    return maker.sequence()


@dataclass(frozen=True, slots=True)
class _LoweredConv:
    """A convolution as a contraction, and the kernel that stages its image, if one must."""

    image: Kernel | None
    contract: Contract
    is_nhwc: bool


def _lower_conv(step: Step) -> _LoweredConv | Refusal:
    """Vectorised over the output channels where the results are NHWC, or where a dot-product
    instruction takes several input channels at once; else over the last spatial axis."""
    given = step.node, step.operands, step.results
    nhwc = lower_nhwc_conv(*given, reads_of(step.isa))
    if not isinstance(nhwc, Refusal) and _is_worth_nhwc(step, *nhwc):
        return _LoweredConv(*nhwc, is_nhwc=True)
    nchw = lower_conv(*given)
    return nchw if isinstance(nchw, Refusal) else _LoweredConv(*nchw, is_nhwc=False)


def _is_worth_nhwc(step: Step, image: Kernel | None, contract: Contract) -> bool:
    if stores_nhwc(contract) and not contract.sums.is_complex:
        return True
    return has_vector_columns(contract) and _has_dot_groups(step, image, contract)


def _has_dot_groups(step: Step, image: Kernel | None, contract: Contract) -> bool:
    """Does one instruction take several channels of its operands? That is worth more than
    contiguous results."""
    written = None if image is None else len(contract.operands) - 1
    return low_precision_conv(contract, step.isa, written).dot_group > 1


class _Maker:
    """A recipe being made. The contraction's operands are buffers, at first the step's."""

    def __init__(self, step: Step, contract: Contract, name: str) -> None:
        self.step, self.machine, self.name = step, step.machine, name
        self.contract = contract
        self.given = list(buffers(len(step.operands), 0))
        self.made = list(buffers(0, len(contract.results)))
        self.tasks: list[Task] = []
        self.temps: list[DimLike] = []
        self.packed: list[PackedWeights] = []
        self.reads_windows = False
        """Are the rows places of windows?"""
        self.written: int | None = None
        """The operand that an image was written to."""

    def sequence(self) -> KernelSequence:
        if self.contract.sums.is_complex:
            self._loop(self.contract.kernel(), self.given, self.made, self.name)
        elif _is_simple(self.contract):
            self._product(self.contract, self.made)
        else:
            self._in_two()
        return KernelSequence(tuple(self.tasks), tuple(self.temps), tuple(self.packed))

    def stage_image(self, image: Kernel) -> None:
        """What the windows of a convolution look at, as one more operand."""
        where = self._temp(image.results[0].size_bytes)
        self._loop(image, self.given, [where], f"{self.name}_image")
        self.written = len(self.given)
        self.given.append(where)

    def _product(self, contract: Contract, made: Sequence[Buffer]) -> None:
        constants = self.step.constants
        if self.reads_windows:
            self._points(legal(contract), made)
            return
        contract = oriented(with_stored_dtypes(legal(contract)), constants)
        if is_gemv(contract, constants) or has_few_output_channels(contract):
            self._loop(contract.kernel(), self.given, made, self.name)
            return
        contract, factor = factor_out_scale(
            self._with_left(self._with_sums(*correct_zero_points(contract, self.machine.isa)))
        )
        is_constant = reads_only(contract.right, constants)
        has_panels = is_worth_packing(contract, is_constant=is_constant)
        tiling = tiling_of(contract, self.machine.isa, has_panels=has_panels)
        packed = [self._pack(contract, tiling, is_constant)] if has_panels else []
        source = emit_gemm(contract, tiling, self.machine.isa, self.name, factor)
        self._add(source, contract, (*self.given, *made, *packed), tiling)

    def _points(self, contract: Contract, made: Sequence[Buffer]) -> None:
        narrow = low_precision_conv(contract, self.machine.isa, self.written)
        contract = self._with_sums(narrow.contract, narrow.sums)
        tiling = implicit_gemm_tiling(contract, self.machine.isa, narrow.dot_group)
        packed = self._pack(contract, tiling, reads_only(contract.right, self.step.constants))
        source = emit_implicit_gemm(contract, tiling, self.machine.isa, self.name)
        self._add(source, contract, (*self.given, *made, packed), tiling)

    def _add(
        self, source: Source, contract: Contract, used: tuple[Buffer, ...], tiling: Tiling
    ) -> None:
        grain = self.machine.units_per_task(source.num_units, _nanoseconds(contract, self.machine))
        task = Task.written(
            source.function, used, source.sizes, source.num_units, grain, source.scratch
        )
        self.tasks.append(replace(task, summary=_how(contract, tiling), kind=TaskKind.GEMM))

    def _with_left(self, contract: Contract) -> Contract:
        """The contraction with its left operand in memory, if one inner axis after the other is
        one axis on the right, then also on the left."""
        is_even = not is_windowed(contract) or steps_evenly(contract.left, contract)
        is_read = isinstance(contract.left, Load) and not contract.left.args and is_even
        if is_read and not self._wants_words(contract):
            return contract
        kernel, contract = materialised(contract)
        where = self._temp(kernel.results[0].size_bytes)
        self._loop(kernel, self.given, [where], f"{self.name}_left")
        self.given.append(where)
        return contract

    def _with_sums(self, contract: Contract, sums: Sequence[CorrectionSums]) -> Contract:
        """A product of bytes, which reads sums of its operands to take off zero points."""
        for i, each in enumerate(sums):
            size, name = each.kernel.results[0].size_bytes, f"{self.name}_sums{i}"
            if reads_only(each.of, self.step.constants):
                to = [Buffer("result", 0)]
                task = loop_task(each.kernel, self.given, to, self.machine, name)
                self.packed.append(PackedWeights(task, size))
                self.given.append(Buffer("packed", len(self.packed) - 1))
                continue
            where = self._temp(size)
            self._loop(each.kernel, self.given, [where], name)
            self.given.append(where)
        return contract

    def _wants_words(self, contract: Contract) -> bool:
        """Would several steps be one instruction's, if those on the left were contiguous?"""
        left, right, *_, last = contract.left, contract.right, *contract.inner
        assert isinstance(left, Load)
        steps = dot_group_size(left.dtype, right.dtype, contract.sums, self.machine.isa)
        return steps > 1 and len(contract.inner) == 1 and left.at.coefficient(last) != 1

    def _pack(self, contract: Contract, tiling: Tiling, is_constant: bool) -> Buffer:
        """The right operand in panels: once, or for every call."""
        size, name = panels_of(contract, tiling).size_bytes, f"{self.name}_pack"
        if is_constant:
            task = self._packing(contract, tiling, Buffer("result", 0), name)
            self.packed.append(PackedWeights(task, size))
            return Buffer("packed", len(self.packed) - 1)
        where = self._temp(size)
        self.tasks.append(self._packing(contract, tiling, where, name))
        return where

    def _packing(self, contract: Contract, tiling: Tiling, to: Buffer, name: str) -> Task:
        right = contract.right
        if tiling.dot_group > 1:
            source = emit_pack_groups(contract, tiling, self.machine.isa, name)
            read = tuple(self.given[i] for i in operands_read(right))
            return self._pack_task(source, contract, tiling, (*read, to))
        if not needs_transpose(contract) or not isinstance(right, Load):
            kernel = pack_kernel(contract, tiling)
            return loop_task(kernel, self.given, [to], self.machine, name)
        source = emit_pack(contract, tiling, self.machine.isa, name)
        return self._pack_task(source, contract, tiling, (self.given[right.operand], to))

    def _pack_task(
        self, source: Source, contract: Contract, tiling: Tiling, used: tuple[Buffer, ...]
    ) -> Task:
        traffic = 2 * panels_of(contract, tiling).size_bytes
        ns = self.machine.worker_ns(0, traffic)
        grain = self.machine.units_per_task(source.num_units, ns)
        return Task.written(
            source.function, used, source.sizes, source.num_units, grain, kind=TaskKind.PACKING
        )

    def _in_two(self) -> None:
        """The product by itself, and a loop for what follows it."""
        product, after = _apart(self.contract)
        where = self._temp(product.results[0].size_bytes)
        given = [*self.given, where]
        self._product(product, [where])
        self._loop(after, given, self.made, f"{self.name}_after")

    def _temp(self, size: DimLike) -> Buffer:
        self.temps.append(size)
        return Buffer("temp", len(self.temps) - 1)

    def _loop(
        self, kernel: Kernel, given: Sequence[Buffer], made: Sequence[Buffer], name: str
    ) -> None:
        self.tasks.append(loop_task(kernel, given, made, self.machine, name))


def _how(contract: Contract, tiling: Tiling) -> str:
    """The tiles in words."""
    rows = max(tiling.rows)
    outer = "×".join(str(a.extent) for a in contract.outer)
    inner = "×".join(str(a.extent) for a in contract.inner)
    right = "the right operand in panels" if tiling.has_panels else "the right operand where it is"
    steps = len(contract.epilogue) - 1
    after = f", {steps} steps on the sums before they are stored" if steps > 0 else ""
    return (
        f"a product of {outer} sums over {inner}, tiles of {rows}×{tiling.columns}, {right}{after}"
    )


def _is_simple(contract: Contract) -> bool:
    """Can what follows the sum be done on the accumulators? Not where it gathers, chooses what
    to read, or makes complex numbers."""
    return not any(_is_more(n) for n in contract.epilogue)


def _is_more(node: Expr) -> bool:
    gathers = isinstance(node, Load) and bool(node.args)
    return gathers or isinstance(node, Choose) or node.dtype.is_complex


def _apart(contract: Contract) -> tuple[Contract, Kernel]:
    """The product, contiguous, and the kernel that reads it as one more operand."""
    (total,) = (n for n in contract.epilogue if isinstance(n, Accumulator))
    layout = Layout.contiguous([a.extent for a in contract.outer])
    at = Affine(tuple((a, s) for a, s in zip(contract.outer, layout.strides) if s != 0))
    shape = Shape(layout.dims, total.dtype)
    product = replace(contract, stores=(Store(0, at, total),), results=(shape,))
    exprs = Exprs()
    number = len(contract.operands)
    move = Mover(exprs, {}, {total: exprs.load(number, at, total.dtype)})
    stores = tuple(Store(s.result, s.at, move(s.value)) for s in contract.stores)
    operands = (*contract.operands, shape)
    return product, Kernel(contract.name, contract.outer, stores, operands, contract.results)


def _nanoseconds(contract: Contract, machine: Machine) -> DimLike:
    """Products, and the right operand once: rows and results are little beside it."""
    points = extent_of((*contract.outer, *contract.inner))
    read = extent_of(a for a in (*contract.batch, *contract.inner, contract.columns)
                     if a in contract.right.free)  # fmt: skip
    steps = len(contract.epilogue)
    flops = 2 * points + steps * extent_of(contract.outer)
    return machine.worker_ns(flops, read * contract.right.dtype.itemsize)
