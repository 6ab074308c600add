"""The kernel forms beside loop nests and contractions: convolutions, copies, and named algorithms.

A form says *what* is computed and where its operands and results lie; how it runs is a target's
schedule. Every form has `name`, `operands` and `results` (shapes), a text, and a NumPy meaning.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from rlx.core.layout import Layout
from rlx.core.shape import Shape
from rlx.ir.mir import Node
from rlx.kernel.attention import Attention
from rlx.kernel.contract import Contract
from rlx.kernel.expr import Kernel
from rlx.kernel.lower.loop import body_of
from rlx.kernel.scan import Scan


@dataclass(frozen=True, slots=True)
class Conv:
    """A convolution as a contraction whose left operand is read through a window: an implicit
    GEMM, vectorised over the output channels."""

    contract: Contract
    image: int | None = None
    """The operand that holds the image, where a kernel before this one wrote it."""

    @property
    def name(self) -> str:
        return self.contract.name

    @property
    def operands(self) -> tuple[Shape, ...]:
        return self.contract.operands

    @property
    def results(self) -> tuple[Shape, ...]:
        return self.contract.results

    def __str__(self) -> str:
        return f"{self.contract}\n  reads its left operand through a window"


@dataclass(frozen=True, slots=True)
class Copy:
    """A value from one layout to another."""

    shape: Shape
    source: Layout
    target: Layout

    name = "copy"

    @property
    def operands(self) -> tuple[Shape, ...]:
        return (self.shape,)

    @property
    def results(self) -> tuple[Shape, ...]:
        return (self.shape,)

    def __str__(self) -> str:
        return f"copy {self.shape}: {text_of(self.source)} to {text_of(self.target)}"


@dataclass(frozen=True, slots=True)
class Special:
    """A named algorithm, such as an FFT, a sort or suppression of boxes: the op and where its
    operands and results lie. The target brings the algorithm."""

    node: Node
    sources: tuple[Layout, ...]
    targets: tuple[Layout, ...]
    written: Layout | None = None
    """Of an update of a state, the elements of its target that it writes."""

    @property
    def name(self) -> str:
        return self.node.op

    @property
    def operands(self) -> tuple[Shape, ...]:
        return tuple(i.shape for i in self.node.inputs)

    @property
    def results(self) -> tuple[Shape, ...]:
        return tuple(o.shape for o in body_of(self.node).outputs)

    def __str__(self) -> str:
        attrs = ", ".join(f"{k}={v}" for k, v in self.node.attrs.items())
        given = ", ".join(_placed(zip(self.operands, self.sources)))
        made = ", ".join(_placed(zip(self.results, self.targets)))
        held = "" if self.written is None else f", in place: {text_of(self.written)}"
        return f"special {self.name}({given}){' {' + attrs + '}' if attrs else ''} -> {made}{held}"


def _placed(values: Iterable[tuple[Shape, Layout]]) -> list[str]:
    return [f"{shape} {text_of(layout)}" for shape, layout in values]


def text_of(layout: Layout) -> str:
    """Strides and offset of a layout; contiguous ones are said to be."""
    if layout.is_contiguous and layout.offset == 0:
        return "contiguous"
    strides = ", ".join(map(str, layout.strides))
    return f"strides ({strides}) offset {layout.offset}"


AnyKernel = Kernel | Contract | Conv | Attention | Scan | Copy | Special
"""What a step is made of."""
