"""LIR: the plan over the final MIR. Backends read it and never re-optimise.

One kernel per node that is not a leaf, a view or an item; a schedule; every value at an offset of
the arena or of the weights; views as aliases; phases; and the manifest of inputs and outputs.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rlx.dim import Dim, DimLike
from rlx.ir.layout import Layout
from rlx.ir.mir import MirModule, Node

if TYPE_CHECKING:
    from rlx.cost.target import Target


class Phase(enum.IntEnum):
    """When a node runs. Phases never decrease along an edge."""

    PROLOGUE = 0  # when parameters are set
    STEADY_STATE = 1  # on every call
    EPILOGUE = 2  # on every call, after all else: sampling, top-k, peaks


class Space(enum.Enum):
    """Which memory a slot lies in."""

    ARENA = "arena"  # one per running call: activations, inputs, outputs
    WEIGHTS = "weights"  # one per set of parameters: params, constants, Prologue results


@dataclass(frozen=True, slots=True)
class Slot:
    """Bytes `offset` to `offset + size` of a space; ints, or dim formulas in a dynamic plan."""

    offset: DimLike
    size: DimLike
    space: Space = Space.ARENA
    is_external: bool = False
    """An input or output, which a backend may bind to the caller's memory."""


@dataclass(frozen=True, slots=True)
class View:
    """A value that owns no bytes: it is `root`'s, read through `layout` (in elements)."""

    root: Node
    layout: Layout


@dataclass(frozen=True, slots=True)
class IoManifest:
    """What goes in and out, in the user's order."""

    inputs: Sequence[tuple[str, Node]]
    params: Sequence[tuple[str, Node]]
    outputs: Sequence[Node]


@dataclass(frozen=True, slots=True)
class BufferPlan:
    """Where every value lies and when every kernel runs.

    A node of several results owns no slot: each of its `item` nodes does, and the final graph has
    an item node for every result.
    """

    arena_bytes: int
    """At `representative` sizes where the plan is dynamic."""
    weight_bytes: int
    assignments: Mapping[Node, Slot]
    schedule: tuple[Node, ...]
    """The kernels in the order they run, phase by phase."""
    views: Mapping[Node, View]
    in_place: Mapping[Node, Node]
    """Kernel node → the dying operand whose bytes it writes its result into."""
    phases: Mapping[Node, Phase]
    io: IoManifest
    alignment: int = 64
    dynamic_symbols: tuple[Dim, ...] = ()
    arena_formula: DimLike = 0
    """`arena_bytes` as a dim formula; the same int in a static plan."""
    representative: Mapping[str, int] = field(default_factory=dict[str, int])


@dataclass(frozen=True, slots=True)
class LirModule:
    """A compiled module: final MIR, plan, and the target it was made for."""

    mir: MirModule
    plan: BufferPlan
    target: Target
    fingerprint: str
