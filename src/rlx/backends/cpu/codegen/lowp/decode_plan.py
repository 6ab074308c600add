"""Vectorisation plan of quantised blocks: how many weights a vector takes, and what is shared.

The terms of neighbouring weights are packed lane by lane into vectors (SLP). A *packet* is one term
per lane. Scalars that weights share, such as the scales of a super-block, are packed in the same
way, and broadcast from their lane. What depends on a few bits of a weight alone is computed for all
their values, and looked up by a permutation.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cache, cached_property

from rlx.core.dtype import DType
from rlx.ops.quant.block_expr import Apply, BlockFormat, Const, Expr, Load, Lookup
from rlx.ops.quant.block_terms import Terms

WINDOW_BYTES = 16
"""The most bytes that one load takes to be shuffled to lanes."""
GATHERED_ROWS = 16
"""The most rows of a table that lanes may look up independently."""
Packet = tuple[Expr, ...]


def is_uniform(packet: Packet) -> bool:
    return all(t is packet[0] for t in packet)


def is_isomorphic(packet: Packet) -> bool:
    """Is the same applied in all lanes, or the same dtype loaded?"""
    first = packet[0]
    kind, dtype = type(first), first.dtype
    if isinstance(first, Apply):
        op = first.op
        return all(isinstance(t, Apply) and t.op == op and t.dtype is dtype for t in packet)
    if isinstance(first, Lookup):
        return all(isinstance(t, Lookup) and t.table is first.table for t in packet)
    return all(type(t) is kind and t.dtype is dtype for t in packet)


def groups_of(packet: Packet) -> list[list[int]]:
    """Lanes by what is applied in them."""
    found: dict[object, list[int]] = {}
    for lane, t in enumerate(packet):
        more = t.op if isinstance(t, Apply) else t.table if isinstance(t, Lookup) else None
        found.setdefault((type(t), t.dtype, more, len(t.args)), []).append(lane)
    return list(found.values())


def filled(packet: Packet, lanes: list[int]) -> Packet:
    """The terms of some lanes; elsewhere that of the first of them."""
    return tuple(t if i in lanes else packet[lanes[0]] for i, t in enumerate(packet))


def columns_of(packet: Packet) -> list[Packet]:
    """The arguments of terms that apply the same."""
    return list(zip(*(t.args for t in packet), strict=True))


def numbers_of(packet: Packet) -> list[int] | None:
    """The values of integer constants; None if they are none."""
    found = [int(t.value) for t in packet if isinstance(t, Const)]
    return found if len(found) == len(packet) else None


@dataclass(frozen=True, slots=True)
class Window:
    """Elements loaded together, and which of them each lane takes."""

    start: int
    count: int
    picks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Permutation:
    """A function of few bits: its values, and the integers whose low bits select among them."""

    values: Packet
    indices: Packet


@dataclass(frozen=True)
class DecodePlan:
    """The packets of `count` consecutive weights."""

    terms: Terms
    count: int
    lanes: int

    @property
    def readable_bytes(self) -> int:
        block_format = self.terms.block_format
        return self.count // block_format.weights * block_format.block_bytes

    def packet(self, position: int) -> Packet:
        return tuple(self.terms.at(position + i) for i in range(self.lanes))

    @cached_property
    def packets(self) -> list[Packet]:
        return [self.packet(p) for p in range(0, self.count, self.lanes)]

    # -- loads ----------------------------------------------------------------------------------

    def window(self, packet: Packet) -> Window | None:
        """How to load a packet of loads at once; None where they are too far from each other."""
        size = packet[0].dtype.itemsize
        offsets = [n for t in packet for n in numbers_of(t.args) or ()]
        low = min(offsets)
        if any((o - low) % size for o in offsets):
            return None
        picks = tuple((o - low) // size for o in offsets)
        if picks == tuple(range(self.lanes)):
            return Window(low, self.lanes, picks)
        count = 1 << max(picks).bit_length()
        start = min(low, self.readable_bytes - count * size)
        if count * size > WINDOW_BYTES or start < 0 or (low - start) % size:
            return None
        return Window(start, count, tuple(p + (low - start) // size for p in picks))

    def is_packable(self, packet: Packet, rows: int) -> bool:
        """Does a packet take vector instructions alone? Lanes may look up tables of at most so many
        rows independently."""
        if is_uniform(packet) or numbers_of(packet) is not None:
            return True
        if not is_isomorphic(packet):
            return all(self.is_packable(filled(packet, g), rows) for g in groups_of(packet))
        if isinstance(packet[0], Load):
            return self.window(packet) is not None
        if isinstance(packet[0], Lookup):
            row, column = columns_of(packet)
            is_row = is_uniform(row) and numbers_of(column) is not None
            return is_row or (len(packet[0].table.values) <= rows and self.is_packable(row, rows))
        return all(self.is_packable(c, rows) for c in columns_of(packet))

    @property
    def is_regular(self) -> bool:
        """Do all its weights take vector instructions alone?"""
        return all(self.is_packable(p, GATHERED_ROWS) for p in self.packets)

    # -- shared scalars -------------------------------------------------------------------------

    @cached_property
    def shared(self) -> dict[Expr, tuple[Packet, int]]:
        """A scalar of several weights → the packet that it is computed in, and its lane: for those
        that differ along the block, where vector instructions compute them."""
        found: dict[tuple[int, ...], list[Expr]] = {}
        for packet in self.packets:
            self._collect(packet, (), found)
        made: dict[Expr, tuple[Packet, int]] = {}
        for some in self._joined([ts for _, ts in sorted(found.items()) if len(ts) > 1]):
            packet = tuple(some[i % len(some)] for i in range(self.lanes))
            if len(some) > 1 and self.is_packable(packet, 0):
                made |= {t: (packet, lane) for lane, t in enumerate(some)}
        return made

    def _joined(self, families: list[list[Expr]]) -> list[list[Expr]]:
        """At most as many as lanes together; small families share a packet."""
        parts: list[list[Expr]] = []
        for given in families:
            if parts and len(parts[-1]) + len(given) <= self.lanes:
                parts[-1] = [*parts[-1], *given]
            else:
                firsts = range(0, len(given), self.lanes)
                parts += [given[first : first + self.lanes] for first in firsts]
        return parts

    def _collect(
        self, packet: Packet, path: tuple[int, ...], found: dict[tuple[int, ...], list[Expr]]
    ) -> None:
        """The floats that all lanes of a packet share, by where they are in the expression."""
        if is_uniform(packet):
            term, known = packet[0], found.setdefault(path, [])
            if isinstance(term, Apply) and term.dtype.is_float and term not in known:
                known.append(term)
        elif packet[0].args and is_isomorphic(packet):
            for number, column in enumerate(columns_of(packet)):
                self._collect(column, (*path, number), found)

    # -- functions of few bits ------------------------------------------------------------------

    @cached_property
    def permutations(self) -> dict[Packet, Permutation]:
        """Packets of weights as functions of integers below the number of lanes, where several have
        the same one."""
        found = {p: made for p in self.packets if (made := self._permutation(p)) is not None}
        uses = Counter(made.values for made in found.values())
        return {p: made for p, made in found.items() if uses[made.values] > 1}

    def _permutation(self, packet: Packet) -> Permutation | None:
        holes = self._holes(packet) if packet[0].dtype.compute is DType.F32 else None
        if holes is None or len(set(holes)) != 1:
            return None
        hole = holes[0]
        if all(isinstance(t, Apply) and t.op == "bit_and" for t in hole):
            given, masks = columns_of(hole)
            known = numbers_of(masks)
            if known is not None and len(set(known)) == 1 and known[0] & (known[0] + 1) == 0:
                return self._selected(packet, hole, given, known[0])
        return self._selected(packet, hole, hole, self.lanes - 1)

    def _selected(self, packet: Packet, hole: Packet, indices: Packet, mask: int) -> Permutation:
        dtype = hole[0].dtype
        values = (
            self.terms.replaced(packet[0], hole[0], self.terms.const(n & mask, dtype))
            for n in range(self.lanes)
        )
        return Permutation(tuple(values), indices)

    def _holes(self, packet: Packet) -> list[Packet] | None:
        """The packets of small integers through which lanes differ; None if they differ otherwise,
        too."""
        if is_uniform(packet):
            return []
        if numbers_of(packet) is not None:
            return None
        found = self._inner_holes(packet)
        is_one = found is not None and len(set(found)) <= 1
        return found if is_one or not all(map(self._is_small, packet)) else [packet]

    def _is_small(self, term: Expr) -> bool:
        bound = self.terms.bound(term)
        return bound is not None and bound < self.lanes

    def _inner_holes(self, packet: Packet) -> list[Packet] | None:
        if not packet[0].args or isinstance(packet[0], Load) or not is_isomorphic(packet):
            return None
        parts = [self._holes(c) for c in columns_of(packet)]
        found = [h for p in parts if p is not None for h in p]
        return None if None in parts else found


@cache
def terms_of(block_format: BlockFormat) -> Terms:
    return Terms(block_format)


@cache
def decode_plan(block_format: BlockFormat, count: int, lanes: int) -> DecodePlan:
    """The plan of `count` weights with vectors of at most so many lanes."""
    while lanes > 1:
        made = DecodePlan(terms_of(block_format), count, lanes)
        if count % lanes == 0 and made.is_regular:
            return made
        lanes //= 2
    return DecodePlan(terms_of(block_format), count, 1)
