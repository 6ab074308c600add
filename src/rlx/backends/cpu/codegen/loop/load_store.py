"""Loads and stores: contiguous, uniform, strided, or gathered; masked where they must be. A lane
that is masked off touches no memory."""

from __future__ import annotations

from typing import TypeGuard

from rlx.backends.cpu.codegen.loop.scope import LoopContext
from rlx.backends.cpu.codegen.loop.vector_access import store_some
from rlx.backends.cpu.codegen.math.storage_types import from_memory, stored, to_memory
from rlx.backends.cpu.llvm.builder import ELEMENT, Bound, Vec
from rlx.backends.cpu.schedule.loop_schedule import MAX_SHUFFLED_STRIDE
from rlx.core.dim import DimLike, is_static
from rlx.core.dtype import DType
from rlx.kernel.expr import Load, Store


class LoadStore:
    """Loads operands and stores results. A gathered index out of range leaves the function by a
    block that is added to `failures`."""

    def __init__(self, context: LoopContext, failures: list[str], *, is_streaming: bool) -> None:
        self.context, self.code, self.lanes = context, context.code, context.lanes
        self.failures, self.is_streaming = failures, is_streaming

    # -- loads ----------------------------------------------------------------------------------

    def load(self, node: Load, copy: int, row: Vec | None) -> Vec:
        """A load, with the index of its row if that is gathered."""
        context, lane = self.context, self.context.at.lane
        is_spread = row is not None and lane in node.args[0].free
        step = node.at.coefficient(lane) if lane else 0
        offset = context.offset(node.at, copy)
        if row is not None:
            row = row.to(DType.I64) if row.dtype.is_signed else row.to(DType.U64).bits(DType.I64)
            self._check_rows(row, node)
        if row is not None and not is_spread:
            moved = self.code.i64("mul", row.lane(), context.dim(node.stride))
            offset = self.code.i64("add", offset, moved)
        element = ELEMENT[stored(node.dtype)]
        where = self._pointer(f"%x{node.operand}", element, offset)
        if is_spread and row is not None:
            places = row * self.code.splat(context.dim(node.stride), DType.I64)
            places = places if step == 0 else places + context.steps(step)
            raw = self._gather(where, element, places)
        else:
            raw = self._strided(where, element, step)
        return from_memory(Vec(self.code, raw, stored(node.dtype)), node.dtype)

    def is_transposed(self, node: Load) -> bool:
        """Is it contiguous along the tile axis while the other axis is vectorised?"""
        tile, lane = self.context.at.tile, self.context.at.lane
        if tile is None or lane is None or self.context.mask is not None or node.args:
            return False
        return node.at.coefficient(tile) == 1 and node.at.coefficient(lane) not in (0, 1)

    def transposed_load(self, node: Load) -> list[Vec]:
        """A square of memory, loaded in rows along the tile and transposed in registers."""
        lane, dtype = self.context.at.lane, stored(node.dtype)
        assert lane is not None
        offset, step = self.context.offset(node.at, 0), self.context.dim(node.at.coefficient(lane))
        rows: list[Vec] = []
        for _ in range(self.lanes):
            where = self._pointer(f"%x{node.operand}", ELEMENT[dtype], offset)
            rows.append(Vec(self.code, self._run(where, ELEMENT[dtype]), dtype))
            offset = self.code.i64("add", offset, step)
        return [from_memory(v, node.dtype) for v in transposed(rows)]

    def _pointer(self, base: str, element: str, offset: Bound) -> str:
        return self.code.let(f"getelementptr {element}, ptr {base}, i64 {offset}")

    def _strided(self, where: str, element: str, step: DimLike) -> str:
        if step == 0:
            return self._uniform(where, element)
        if step == 1:
            return self._run(where, element)
        if step == -1 and self.context.mask is None:
            return self._backwards(where, element)
        if isinstance(step, int) and 1 < step <= MAX_SHUFFLED_STRIDE and self.context.mask is None:
            return self._picked(where, element, step)
        return self._gather(where, element, self.context.steps(step))

    def _uniform(self, where: str, element: str) -> str:
        """One element, broadcast. Under a guard it is loaded only if a lane needs it."""
        code, kind = self.code, self.code.vector(element)
        if self.context.at.guard is None:
            one = code.let(f"load {element}, ptr {where}")
        else:
            wanted = self.context.mask.any() if self.context.mask else "true"
            first = code.let(
                f"insertelement {code.vector('i1')} zeroinitializer, i1 {wanted}, i32 0"
            )
            found = self._masked_load(where, element, first)
            one = code.let(f"extractelement {kind} {found}, i32 0")
        head = code.let(f"insertelement {kind} poison, {element} {one}, i32 0")
        order = f"{code.vector('i32')} zeroinitializer"
        return code.let(f"shufflevector {kind} {head}, {kind} poison, {order}")

    def _run(self, where: str, element: str) -> str:
        mask = self.context.mask
        if mask is None:
            return self.code.let(
                f"load {self.code.vector(element)}, ptr {where}, align {_bytes(element)}"
            )
        return self._masked_load(where, element, mask.text)

    def _masked_load(self, where: str, element: str, mask: str) -> str:
        code, kind = self.code, self.code.vector(element)
        return code.intrinsic(
            f"masked.load.{code.suffix(element)}.p0",
            kind,
            f"ptr align {_bytes(element)} {where}",
            f"{code.vector('i1')} {mask}",
            f"{kind} zeroinitializer",
        )

    def _backwards(self, where: str, element: str) -> str:
        code, kind, last = self.code, self.code.vector(element), self.lanes - 1
        first = code.let(f"getelementptr {element}, ptr {where}, i64 {-last}")
        run = code.let(f"load {kind}, ptr {first}, align {_bytes(element)}")
        order = ", ".join(f"i32 {last - n}" for n in range(self.lanes))
        picks = f"{code.vector('i32')} <{order}>"
        return code.let(f"shufflevector {kind} {run}, {kind} poison, {picks}")

    def _picked(self, where: str, element: str, step: int) -> str:
        """Every step-th element of contiguous vectors. The last vector ends with the last element
        needed, as nothing after it may be read."""
        lanes = self.lanes
        last = (lanes - 1) * (step - 1)
        starts = [min(lanes * n, last) for n in range(step)]
        runs = [self._run(self._pointer(where, element, s), element) for s in starts]
        made, filled = runs[0], -(-lanes // step)
        for start, run in zip(starts[1:], runs[1:]):
            until = (start + lanes - 1) // step + 1
            fresh = [lanes + n * step - start for n in range(filled, until)]
            picks = [n * step for n in range(filled)] if made == runs[0] else list(range(filled))
            made = self._blend(made, run, [*picks, *fresh], element)
            filled = until
        return made

    def _blend(self, a: str, b: str, picks: list[int], element: str) -> str:
        """A two-input shuffle; the other lanes are poison."""
        kind, rest = self.code.vector(element), [-1] * (self.lanes - len(picks))
        order = ", ".join("i32 poison" if p < 0 else f"i32 {p}" for p in [*picks, *rest])
        mask = f"{self.code.vector('i32')} <{order}>"
        return self.code.let(f"shufflevector {kind} {a}, {kind} {b}, {mask}")

    def _gather(self, where: str, element: str, places: Vec) -> str:
        code, kind = self.code, self.code.vector(element)
        pointers = code.let(f"getelementptr {element}, ptr {where}, {places.type} {places.text}")
        return code.intrinsic(
            f"masked.gather.{code.suffix(element)}.v{self.lanes}p0",
            kind,
            f"{code.vector('ptr')} align {_bytes(element)} {pointers}",
            f"{code.vector('i1')} {self._mask_text()}",
            f"{kind} zeroinitializer",
        )

    def _mask_text(self) -> str:
        return self.context.mask.text if self.context.mask else "splat (i1 true)"

    def _check_rows(self, row: Vec, node: Load) -> None:
        """Return an error code where a gathered row is out of range."""
        code = self.code
        bound = code.splat(self.context.dim(node.bound), DType.U64)
        is_bad = row.bits(DType.U64) >= bound
        if self.context.mask is not None:
            is_bad = is_bad & self.context.mask
        number = [n for n in self.context.kernel.nodes if isinstance(n, Load) and n.args].index(
            node
        ) + 1
        fail, on = f"fail{number}", code.label("on")
        code.do(f"br i1 {is_bad.any()}, label %{fail}, label %{on}")
        code.lines.append(f"{on}:")
        block = f"{fail}:\n  ret i32 {number}"
        if block not in self.failures:
            self.failures.append(block)

    # -- stores ---------------------------------------------------------------------------------

    def store(self, store: Store, copy: int, value: Vec) -> None:
        """Store a computed value: an output may alias an input."""
        dtype = store.value.dtype
        element = ELEMENT[stored(dtype)]
        made = to_memory(value, dtype)
        step = store.at.coefficient(self.context.at.lane) if self.context.at.lane else 0
        where = self._pointer(f"%y{store.result}", element, self.context.offset(store.at, copy))
        if step == 0:
            self.code.do(f"store {element} {made.lane()}, ptr {where}")
        elif step != 1 and self._has_masked_stores(step, element):
            self._spread(where, element, step, made)
        elif step != 1:
            self._scatter(where, element, self.context.steps(step), made)
        elif self.context.mask is not None:
            store_some(self.code, made, where, self.context.mask)
        elif self.is_streaming and self._is_aligned(store):
            size = self.lanes * _bytes(element)
            text = f"store {made.type} {made.text}, ptr {where}, align {size}, !nontemporal !0"
            self.code.do(text)
        else:
            self.code.do(f"store {made.type} {made.text}, ptr {where}, align {_bytes(element)}")

    def _is_aligned(self, store: Store) -> bool:
        """Is every vector aligned, given that the buffer is?"""
        steps = [c for a, c in store.at.terms if a is not self.context.at.lane]
        bounds = [store.at.offset, *steps, self.context.at.piece_low]
        return all(is_static(b) and b % self.lanes == 0 for b in bounds)

    def _has_masked_stores(self, step: DimLike, element: str) -> TypeGuard[int]:
        """Does a masked store take one instruction, and so few of them the lanes?"""
        if not isinstance(step, int) or not 1 < step <= MAX_SHUFFLED_STRIDE:
            return False
        isa = self.code.isa
        has_masks = isa.has_masks or (isa.vector_bytes == 32 and _bytes(element) >= 4)
        return has_masks and self.context.mask is None

    def _spread(self, where: str, element: str, step: int, made: Vec) -> None:
        """Every step-th element of contiguous vectors; the others are masked off."""
        code, lanes = self.code, self.lanes
        for n in range(step):
            places = range(n * lanes, (n + 1) * lanes)
            picks = ", ".join(f"i1 {str(p % step == 0).lower()}" for p in places)
            value = made.shuffled([p // step for p in places])
            to = self._pointer(where, element, n * lanes)
            store_some(code, value, to, Vec(code, f"<{picks}>", DType.BOOL))

    def _scatter(self, where: str, element: str, places: Vec, made: Vec) -> None:
        code = self.code
        pointers = code.let(f"getelementptr {element}, ptr {where}, {places.type} {places.text}")
        code.intrinsic(
            f"masked.scatter.{code.suffix(element)}.v{self.lanes}p0",
            "void",
            f"{made.type} {made.text}",
            f"{code.vector('ptr')} align {_bytes(element)} {pointers}",
            f"{code.vector('i1')} {self._mask_text()}",
        )


def _bytes(element: str) -> int:
    return {"float": 4, "double": 8}.get(element) or int(element[1:]) // 8


def transposed(rows: list[Vec]) -> list[Vec]:
    """Register transpose: at each distance, pairs of rows swap halves of their blocks."""
    lanes = range(len(rows))
    distance = len(rows) // 2
    while distance:
        picks = [n if n & distance == 0 else len(rows) + (n ^ distance) for n in lanes]
        other = [n ^ distance if n & distance == 0 else len(rows) + n for n in lanes]
        made = list(rows)
        for n in lanes:
            if n & distance == 0:
                a, b = rows[n], rows[n + distance]
                made[n], made[n + distance] = a.joined(b, picks), a.joined(b, other)
        rows, distance = made, distance // 2
    return rows
