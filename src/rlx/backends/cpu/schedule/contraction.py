"""Contractions as tasks: which operand is packed, what is computed before, in which tiles.

What follows from weights alone is packed into panels once. Any other right operand is read where
it lies, or packed for each call where it must be or where it is read often. A left operand that is
computed is materialised first.
"""

from __future__ import annotations

from collections.abc import Sequence

from rlx.backends.cpu.codegen.conv.implicit_gemm import ImplicitGemm, implicit_gemm_tiling
from rlx.backends.cpu.codegen.gemm.gemm import Gemm, legal
from rlx.backends.cpu.codegen.gemm.packing import Packing, needs_transpose, operands_read
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
from rlx.backends.cpu.isa import Isa
from rlx.backends.cpu.llvm.function import TaskCode
from rlx.backends.cpu.machine import CpuMachine
from rlx.backends.cpu.program.task import Task, TaskKind
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
from rlx.backends.cpu.schedule.loop import loop_task
from rlx.core.dim import DimLike
from rlx.kernel.contract import Contract, extent_of, materialised
from rlx.kernel.expr import Apply, Kernel, Load
from rlx.kernel.lower.conv import lower_conv
from rlx.kernel.lower.nhwc_conv import (
    has_vector_columns,
    is_plain_gemm,
    lower_nhwc_conv,
    stores_nhwc,
)
from rlx.kernel.program.forms import Conv
from rlx.kernel.program.lower_step import LoweredConv
from rlx.kernel.program.program import KernelCall, Step
from rlx.kernel.program.schedule import Buffer, PackedWeights, Schedule, buffers
from rlx.kernel.refusal import Refusal


def contraction_schedule(call: KernelCall, machine: CpuMachine) -> Schedule[Task]:
    """The tasks of a contraction, or of a convolution that reads windows."""
    return _Maker(call, machine).sequence()


def contraction_tasks(
    contract: Contract, constants: frozenset[int], machine: CpuMachine, name: str
) -> Schedule[Task]:
    """The tasks of a contraction that is part of another kernel, on its operands; these of them
    follow from weights alone."""
    given, made = buffers(len(contract.operands), 0), buffers(0, len(contract.results))
    return contraction_schedule(KernelCall(contract, given, made, constants, name=name), machine)


def lower_conv_for(step: Step, isa: Isa) -> LoweredConv | Refusal:
    """Vectorised over the output channels where the results are NHWC, or where a dot-product
    instruction takes several input channels at once; else over the last spatial axis."""
    given = step.node, step.operands, step.results
    nhwc = lower_nhwc_conv(*given, reads_of(isa))
    if not isinstance(nhwc, Refusal) and _is_worth_nhwc(isa, *nhwc):
        return LoweredConv(*nhwc, has_windows=not is_plain_gemm(nhwc[1]))
    nchw = lower_conv(*given)
    return nchw if isinstance(nchw, Refusal) else LoweredConv(*nchw, has_windows=False)


def _is_worth_nhwc(isa: Isa, image: Kernel | None, contract: Contract) -> bool:
    if stores_nhwc(contract) and not contract.sums.is_complex:
        return True
    return has_vector_columns(contract) and _has_dot_groups(isa, image, contract)


def _has_dot_groups(isa: Isa, image: Kernel | None, contract: Contract) -> bool:
    """Does one instruction take several channels of its operands? That is worth more than
    contiguous results."""
    written = None if image is None else len(contract.operands) - 1
    return low_precision_conv(contract, isa, written).dot_group > 1


class _Maker:
    """A schedule being made. The contraction's operands are buffers, at first the kernel's."""

    def __init__(self, call: KernelCall, machine: CpuMachine) -> None:
        self.machine, self.name, self.constants = machine, call.name, call.constants
        self.kernel = call.kernel
        self.given = list(buffers(len(call.operands), 0))
        self.made = list(buffers(0, len(call.results)))
        self.tasks: list[Task] = []
        self.temps: list[DimLike] = []
        self.packed: list[PackedWeights[Task]] = []

    def sequence(self) -> Schedule[Task]:
        match self.kernel:
            case Conv(contract, image):
                self._windows(legal(contract), image)
            case Contract():
                self._product(self.kernel, self.made)
            case _:
                raise AssertionError(self.kernel)
        return Schedule(tuple(self.tasks), tuple(self.temps), tuple(self.packed))

    def _product(self, contract: Contract, made: Sequence[Buffer]) -> None:
        constants = self.constants
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
        work = Gemm(contract, tiling, self.machine.isa, factor)
        self._add(work, (*self.given, *made, *packed))

    def _windows(self, contract: Contract, image: int | None) -> None:
        """An implicit GEMM of a convolution."""
        narrow = low_precision_conv(contract, self.machine.isa, image)
        contract = self._with_sums(narrow.contract, narrow.sums)
        tiling = implicit_gemm_tiling(contract, self.machine.isa, narrow.dot_group)
        packed = self._pack(contract, tiling, reads_only(contract.right, self.constants))
        work = ImplicitGemm(contract, tiling, self.machine.isa)
        self._add(work, (*self.given, *self.made, packed))

    def _add(self, work: Gemm | ImplicitGemm, used: tuple[Buffer, ...]) -> None:
        contract, tiling = work.contract, work.tiling
        grain = self.machine.units_per_task(work.num_units, _nanoseconds(contract, self.machine))
        self.tasks.append(
            Task(
                TaskCode(self.name, work.source),
                used,
                work.num_units,
                grain,
                work.scratch,
                summary=_how(contract, tiling),
                kind=TaskKind.GEMM,
            )
        )

    def _with_left(self, contract: Contract) -> Contract:
        """The contraction with its left operand in memory, if one inner axis after the other is
        one axis on the right, then also on the left."""
        is_even = not is_windowed(contract) or steps_evenly(contract.left, contract)
        is_read = isinstance(contract.left, Load) and not contract.left.args and is_even
        if is_read and not self._wants_dot_group(contract):
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
            if reads_only(each.of, self.constants):
                to = [Buffer("result", 0)]
                task = loop_task(each.kernel, self.given, to, self.machine, name, has_key=True)
                self.packed.append(PackedWeights(task, size))
                self.given.append(Buffer("packed", len(self.packed) - 1))
                continue
            where = self._temp(size)
            self._loop(each.kernel, self.given, [where], name)
            self.given.append(where)
        return contract

    def _wants_dot_group(self, contract: Contract) -> bool:
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
        if tiling.dot_group > 1 or (needs_transpose(contract) and isinstance(right, Load)):
            work = Packing(contract, tiling, self.machine.isa)
            read = tuple(self.given[i] for i in operands_read(right))
            return self._pack_task(work, (*read, to), name)
        kernel = pack_kernel(contract, tiling)
        return loop_task(kernel, self.given, [to], self.machine, name, has_key=True)

    def _pack_task(self, work: Packing, used: tuple[Buffer, ...], name: str) -> Task:
        traffic = 2 * panels_of(work.contract, work.tiling).size_bytes
        ns = self.machine.worker_ns(0, traffic)
        grain = self.machine.units_per_task(work.num_units, ns)
        code = TaskCode(name, work.source, work.key)
        return Task(code, used, work.num_units, grain, kind=TaskKind.PACKING)

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
    right = "packed right operand" if tiling.has_panels else "right operand read in place"
    ops = sum(isinstance(n, Apply) for n in contract.epilogue)
    epilogue = f", epilogue of {ops} op{'s' if ops > 1 else ''}" if ops else ""
    tile = f"register tiles of {rows}×{tiling.columns}"
    return f"GEMM of {outer} with K = {inner}, {tile}, {right}{epilogue}"


def _nanoseconds(contract: Contract, machine: CpuMachine) -> DimLike:
    """Products, and the right operand once: rows and results are little beside it."""
    points = extent_of((*contract.outer, *contract.inner))
    read = extent_of(a for a in (*contract.batch, *contract.inner, contract.columns)
                     if a in contract.right.free)  # fmt: skip
    steps = len(contract.epilogue)
    flops = 2 * points + steps * extent_of(contract.outer)
    return machine.worker_ns(flops, read * contract.right.dtype.itemsize)
