"""Nodes of programs for a vector unit: values that are uniform, addresses, and what lanes exchange.

Beside them stand the numbers and the control flow of `nodes.py`, on numbers of every lane and on
uniform ones. Memory is bytes behind addresses; what an address points into comes with it, so that
an interpreter knows the bounds of every access.
"""

from __future__ import annotations

from rlx.program.nodes import Node, Number, immutable
from rlx.program.types import Type


@immutable(kw_only=True)
class Broadcast(Node):
    """A uniform number, in every lane."""


@immutable(kw_only=True)
class LaneIndex(Node):
    """0, 1, 2 … along the lanes."""


@immutable(kw_only=True)
class VectorConst(Node):
    """A constant, lane by lane."""

    numbers: tuple[Number, ...]


@immutable(kw_only=True)
class FirstLane(Node):
    """A mask: a uniform truth value in the first lane, false in the others."""


@immutable(kw_only=True)
class ExtractLane(Node):
    """The number of one lane, uniform."""

    lane: int


@immutable(kw_only=True)
class Permute(Node):
    """The lanes of one vector, or of two behind each other, in another order."""

    picks: tuple[int, ...]
    """For each lane, which; any number where it is -1."""


@immutable(kw_only=True)
class OpaqueMask(Node):
    """The same mask, of which the compiler behind the printer knows nothing any more."""


@immutable(kw_only=True)
class Scale(Node):
    """The first times two to the second, a whole number; 0 and infinity where it is out of range.
    One instruction, where the machine has it."""


@immutable(kw_only=True)
class AnyLane(Node):
    """Is any lane set? Uniform."""


@immutable(kw_only=True)
class Unordered(Node):
    """Is either of two floats NaN?"""


@immutable(kw_only=True)
class SaturatingConvert(Node):
    """Floats to integers, towards 0; what is out of range to the nearest bound, NaN to 0."""


@immutable(kw_only=True)
class Intrinsic(Node):
    """An instruction of LLVM's, by its name without the suffix of its types."""

    name: str


@immutable(kw_only=True)
class FunctionCall(Node):
    """A call of a function of the same module, which is pure; args: its arguments."""

    function: str


# -- memory ---------------------------------------------------------------------------------------


@immutable(kw_only=True)
class Advance(Node):
    """An address some elements on; args: address, and a uniform index or one of every lane."""

    element: Type


@immutable(kw_only=True)
class Local(Node):
    """The address of a variable of this function's own."""

    kind: Type


@immutable(kw_only=True)
class Load(Node):
    """A load; args: address, and a mask or none. Of a uniform address: a uniform number, or
    neighbours in the lanes. Lanes that the mask leaves out read nothing and are 0."""

    align: int = 0
    """In bytes; that of the type where it is 0."""


@immutable(kw_only=True)
class Store(Node):
    """A store; args: address, value, and a mask or none."""

    align: int = 0
    is_streaming: bool = False
    """It will not be read soon, and bypasses caches."""


# -- control --------------------------------------------------------------------------------------


@immutable(kw_only=True)
class Poll(Node):
    """Return where the call is interrupted, or has failed in another thread."""

    statement: str
    """How, with the code in braces."""


@immutable(kw_only=True)
class Return(Node):
    """The end of the function."""

    code: int = 0
    """0, or the number of a failure."""


@immutable(kw_only=True)
class FailIf(Node):
    """The end of the function where a condition holds; args: it."""

    code: int


@immutable(kw_only=True)
class Verbatim(Node):
    """Lines of LLVM that an emitter wrote itself: nothing is known of them."""

    lines: tuple[str, ...]


def is_typed(node: Node) -> bool:
    """Is all that happens in it said by nodes?"""
    if isinstance(node, Verbatim):
        return False
    return all(is_typed(n) for r in node.regions for n in r.nodes)
