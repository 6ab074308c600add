"""Target descriptions as data: supported ops, kernel limits, and the machine.

Nothing here measures. `Target.of("cuda")` is the documented value, the same on every machine; a
backend that registers, or a calibration, makes another value of it with `dataclasses.replace`.
"""

from __future__ import annotations

import enum
import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from rlx.core.arguments import TEXT
from rlx.core.attrs import HeldGraph
from rlx.core.dim import DimLike, is_static, upper_bound
from rlx.core.dtype import DType
from rlx.core.errors import Error
from rlx.core.layout import Layout
from rlx.core.public_calls import public_class
from rlx.cost.gate import IoFusionGate
from rlx.cost.machine import Machine
from rlx.ops.op import Kind, Op, lookup

if TYPE_CHECKING:
    from rlx.ir.mir import Node


class FusionTarget(enum.Enum):
    """The seven targets."""

    CPU = "cpu"
    CUDA = "cuda"
    ROCM = "rocm"
    METAL = "metal"
    MLX = "mlx"
    WGPU = "wgpu"
    TPU = "tpu"


@public_class
@dataclass(frozen=True, slots=True)
class FusionLimits:
    """How large a region may grow; None is no limit."""

    max_elementwise_steps: int | None = None
    """Ops of a region."""
    max_elementwise_inputs: int | None = None
    """Values that a region reads."""
    max_row_steps: int | None = None
    """Reductions and norms of a region: each is a pass over the row, of which every one may compute
    what those before it did."""
    max_operations: int | None = None
    """Nominal operations per element of a region (`rlx.ops.cost`). The time to compile a kernel
    grows faster than its code does; where this many take far longer than a store and a load, to
    cut the region there costs next to nothing."""

    def __post_init__(self) -> None:
        for name in (f.name for f in fields(self)):
            value = getattr(self, name)
            is_count = isinstance(value, int) and not isinstance(value, bool) and value >= 1
            if value is not None and not is_count:
                raise Error(f"FusionLimits: {name} is {value!r}. Use a positive int, or None.")


@dataclass(frozen=True, slots=True)
class KernelLimit:
    """What a target's kernel for an op accepts; beyond it the op is lowered."""

    dtypes: frozenset[DType] | None = None
    """Of every operand; None is any."""
    max_attrs: Mapping[str, int] = field(default_factory=dict[str, int])
    max_row: int | None = None
    """The longest last axis of the first operand."""
    why_row: str = "a row must fit the kernel's local memory"

    def why_not(self, node: Node) -> str | None:
        """What of `node` the kernel cannot take; None if it takes it."""
        shapes = [s for i in node.inputs for s in i.shapes]
        for dtype in (s.dtype for s in shapes):
            if self.dtypes is not None and dtype not in self.dtypes:
                return f"the kernel is for {_names(self.dtypes)}, not {dtype}"
        for name, most in self.max_attrs.items():
            if node.attrs[name] > most:
                return f"the kernel takes {name} up to {most}, not {node.attrs[name]}"
        row = shapes[0].dims[-1] if shapes and shapes[0].dims else 1
        if self.max_row is not None and not _is_at_most(row, self.max_row):
            return f"the kernel takes rows up to {self.max_row}, not {row}: {self.why_row}"
        return None


@dataclass(frozen=True, slots=True)
class ConvolutionPrices:
    """What a target's convolution kernels take beside their arithmetic, in scalar instructions;
    register tiles and lanes are the machine's."""

    instructions_per_window: int
    """Of an NHWC kernel: a window's base offset, its storing and the write-back of its sums."""
    instructions_per_tap: int
    """Of an NHWC kernel: a tap's offset with its bounds check."""


@dataclass(frozen=True, slots=True)
class ImplicitGemm:
    """Convolutions as products of windows and filters on matrix instructions. Windows are read as
    runs of channels, so that an NCHW image is transposed by a kernel of its own first; results are
    stored in either layout alike."""

    dtypes: frozenset[DType]
    """Of the images that matrix instructions multiply; others are convolved in NCHW."""


@dataclass(frozen=True, slots=True)
class Claim:
    """What a target does with a node: runs its own kernel, runs the lowering, or cannot."""

    kind: Literal["native", "lowered", "no"]
    reason: str = ""

    @property
    def is_native(self) -> bool:
        return self.kind == "native"


REGION_KINDS = ("elementwise", "row", "movement", "epilogue", "multi_result", "few_rows")
"""Elementwise ops, reductions of rows, movements, what follows an anchor; several results; and what
surrounds products of few rows and attention of few queries."""
LOOPS = ("if", "while", "scan")
IN_PLACE = frozenset({"reshape", "squeeze", "expand_dims", "item"})
"""Movements that keep the element order: a contiguous view, which any kernel reads in place."""


@public_class
@dataclass(frozen=True, slots=True)
class Target:
    """Everything the compiler knows about a target. Two equal values compile to the same
    program."""

    name: str
    machine: Machine
    limits: FusionLimits
    native_kinds: frozenset[Kind]
    """Kinds of ops that all have a generated kernel; fused ops are claimed by name."""
    native: frozenset[str]
    """Ops of other kinds with a dedicated kernel although they have a lowering. Ops without a
    lowering are primitives, which every target has."""
    kernel_limits: Mapping[str, KernelLimit]
    refusals: Mapping[str, str]
    """Op → why it cannot run at all."""
    missing_dtypes: Mapping[DType, str]
    """Dtype → why no value of it can exist there."""
    views: frozenset[str]
    """Movements whose strided results the target's kernels read in place."""
    syncs: frozenset[str]
    """Ops for which the device waits for the host."""
    regions: frozenset[str]
    """What a region kernel can hold, of `REGION_KINDS`."""
    loops: frozenset[str]
    """Control flow that runs as such, of `LOOPS`; the rest is unrolled or becomes selects."""
    convolutions: ConvolutionPrices | ImplicitGemm | None = None
    """What convolutions of NCHW and of NHWC images cost, of which the cheaper is taken; None where
    images are NCHW."""
    jit_compiles: bool = False
    """Is each kernel compiled just in time, so that deduplicated kernels compile once?"""
    claimed: frozenset[str] | None = None
    """Exactly the ops that have a kernel, where a backend lists them; None leaves it to the kinds
    and names above."""
    mesh: Mapping[str, int] = field(default_factory=dict[str, int])
    """Axes of the mesh of devices that runs one program: name → devices along it; empty for one
    device. "data" splits the batch, "model" the weights of products."""

    @classmethod
    def of(cls, target: FusionTarget | Target | str) -> Target:
        """The documented value of a target; a Target stands for itself."""
        from rlx.cost.targets import documented

        if isinstance(target, Target):
            return target
        name = target.value if isinstance(target, FusionTarget) else target
        TEXT.check("the target", name)
        known = [t.value for t in FusionTarget]
        if name not in known:
            raise Error(f"there is no target {name!r}. Use one of: {', '.join(known)}.")
        return documented(name)

    # -- claims ------------------------------------------------------------------------------------

    def has_kernel(self, op: str) -> bool:
        """Can a node of `op` be native here? Its dtypes and sizes may still forbid it."""
        return op not in self.refusals and self._runs(lookup(op))

    @property
    def holds_state(self) -> bool:
        """Does it write states in place, so that there are sessions?"""
        return self._runs(lookup("append"))

    def with_supported_ops(self, ops: Iterable[str]) -> Target:
        """The target with kernels for exactly these ops; an empty claim leaves its own."""
        if isinstance(ops, str):
            raise Error(f"with_supported_ops takes a list of op names, not the string {ops!r}.")
        names = frozenset(lookup(name).name for name in ops)
        return replace(self, claimed=names, loops=frozenset(LOOPS) & names) if names else self

    def _runs(self, op: Op) -> bool:
        """Loops are claimed by name, and so are fused ops; the rest by kind, or as primitives."""
        if self.claimed is not None:
            return op.name in self.claimed | IN_PLACE or op.kind is Kind.LEAF
        if op.name in LOOPS:
            return op.name in self.loops
        is_generated = op.kind in self.native_kinds and not op.is_fused
        return is_generated or op.name in self.native or op.lower is None

    def claim(self, node: Node) -> Claim:
        """How this target runs `node`, and why."""
        refusal = self.refusals.get(node.op) or self._missing(node) or self._no_state(node)
        if refusal:
            return Claim("no", refusal)
        if node.op in LOOPS:
            return self._claim_loop(node)
        if not self._runs(node.decl):
            return Claim("lowered", f"{self.name} has no dedicated kernel for {node.op}")
        limit = self.kernel_limits.get(node.op)
        why = limit.why_not(node) if limit else None
        return Claim("lowered", why) if why else Claim("native")

    def _no_state(self, node: Node) -> str | None:
        """Why there are no states, where no update of one has a kernel."""
        if node.op != "state" or self.holds_state:
            return None
        return f"{self.name} writes no state in place: it has no sessions. Give it as an input"

    def _missing(self, node: Node) -> str | None:
        """The reason of the first dtype, here or in a body, that the target does not have. To be
        given as a leaf, and to be taken for its bits, is no computation in f64."""
        if not self.missing_dtypes:
            return None
        for inner in with_bodies(node):
            if has_bodies(inner):
                continue
            held = {DType.F64} if inner.is_leaf or inner.op == "bitcast" else set[DType]()
            for shape in (*inner.shapes, *(s for i in inner.inputs for s in i.shapes)):
                if shape.dtype in self.missing_dtypes and shape.dtype not in held:
                    return self.missing_dtypes[shape.dtype]
        return None

    def _claim_loop(self, node: Node) -> Claim:
        if node.op in self.loops:
            return Claim("native")
        if node.op == "if":
            return Claim("lowered", f"{self.name} has no branches: it runs both sides and selects")
        if node.op == "while" and node.attrs["max_iterations"] is None:
            return Claim("no", f"{self.name} unrolls loops, and this one has no max_iterations")
        if node.op == "scan" and not is_static(node.attrs["length"]):
            return Claim("no", f"{self.name} unrolls scans, and this one's length is not fixed")
        return Claim("lowered", f"{self.name} has no {node.op}: it is unrolled")

    # -- views -------------------------------------------------------------------------------------

    def view(self, node: Node, layout: Layout) -> Layout | None:
        """`node` as a strided view of its first operand's buffer; None if it needs a copy."""
        if node.op == "item":
            return Layout.contiguous(node.shape.dims)
        if node.op == "cast":
            return layout if node.inputs[0].shape.dtype is node.shape.dtype else None
        if node.decl.view_rule is None:
            return None
        found = node.decl.view_rule(layout, **node.attrs)
        if found is None or not (node.op in IN_PLACE | self.views or found.is_contiguous):
            return None
        return found

    # -- the value ---------------------------------------------------------------------------------

    @property
    def splits_products(self) -> bool:
        """Has each device some columns of the weights of a product, or some rows?"""
        return self.mesh.get("model", 1) > 1

    @property
    def gate(self) -> IoFusionGate:
        """What launches, waits and transfers cost on the machine."""
        return self.machine.gate

    def digest(self) -> str:
        """A hash of every fact above, the same on every machine and run."""
        return hashlib.blake2b(_text(self).encode(), digest_size=16).hexdigest()

    def __hash__(self) -> int:
        return hash(self.digest())

    def __repr__(self) -> str:
        return f"<Target {self.name}>"


def has_bodies(node: Node) -> bool:
    """Is it a region or a loop, whose nodes are others' claims?"""
    return any(isinstance(value, HeldGraph) for value in node.attrs.values())


def with_bodies(node: Node) -> Iterable[Node]:
    """`node`, and every node of the graphs inside it."""
    todo = [node]
    while todo:
        inner = todo.pop()
        yield inner
        for value in inner.attrs.values():
            if isinstance(value, HeldGraph):
                todo += reversed(value.order())


def _is_at_most(dim: DimLike, most: int) -> bool:
    bound = upper_bound(dim)
    return bound is not None and bound <= most


def _names(dtypes: Iterable[DType]) -> str:
    return ", ".join(sorted(d.value for d in dtypes))


def _text(value: Any) -> str:
    """A canonical text: dataclasses by field, sets and mappings sorted."""
    if isinstance(value, enum.Enum):
        return str(value.value)
    if is_dataclass(value):
        parts = (f"{f.name}={_text(getattr(value, f.name))}" for f in fields(value))
        return f"({','.join(parts)})"
    if isinstance(value, Mapping):
        return f"{{{','.join(sorted(f'{_text(k)}:{_text(v)}' for k, v in value.items()))}}}"
    if isinstance(value, frozenset):
        return f"{{{','.join(sorted(map(_text, value)))}}}"
    if isinstance(value, tuple):
        return f"[{','.join(map(_text, value))}]"
    is_exact = isinstance(value, int | float) and float(value) == value
    return repr(float(value)) if is_exact else repr(value)
