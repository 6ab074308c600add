"""Kernels of the neutral level as Triton source: is there anything of one target in them?

Structured as a backend would be: a kernel and its schedule, or a contraction and its tiles, in;
text out. A program of the grid is a point of the outer axes, or a block of the lanes; tails are
masked. An axis that folds bind is swept inside the program: whole in one block where the machine
keeps a row, so that a value which two passes read is one variable; in a loop where not.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from rlx.core.dim import DimLike, is_static, upper_bound
from rlx.core.dtype import DType
from rlx.core.errors import UnsupportedError
from rlx.cost.machine import Machine
from rlx.kernel.collapse import collapsed
from rlx.kernel.contract import Accumulator, Contract, through
from rlx.kernel.decompose import decomposed
from rlx.kernel.expr import (
    Affine,
    Apply,
    Axis,
    Choose,
    Const,
    Expr,
    Index,
    Inside,
    Kernel,
    Load,
    Reduce,
    Size,
    Store,
    postorder,
)
from rlx.kernel.schedule import Schedule, check, lanes_of, sizes_of
from tests.kernel.triton_words import (
    COMBINE,
    NAMES,
    constant,
    is_native,
    number,
    rounded,
    spell,
)

FOLD = "@triton.jit\ndef {}_of(a, b):\n    return {}\n"
HEAD = ["import triton", "import triton.language as tl", ""]


@dataclass(frozen=True)
class Source:
    """A file with one kernel, and how to launch it."""

    name: str
    text: str
    pointers: tuple[DType, ...]
    """Of the operands, the results, and a count of gathered rows that are not there."""
    sizes: tuple[DimLike, ...]
    """The arguments behind them."""
    grid: tuple[tuple[DimLike, int], ...]
    """Extents, and the steps of each that one program does."""


@dataclass(frozen=True)
class Tiles:
    """How a contraction runs: steps of each axis that one program does at a time."""

    rows: int = 16
    columns: int = 32
    inner: int = 16
    widens: bool = False
    """Half floats are multiplied as f32: the same products, for where there are no others."""


def legal(kernel: Kernel) -> Kernel:
    """The kernel in ops that Triton has; schedules are chosen for this one."""
    return decomposed(collapsed(kernel), is_native)


def legal_contract(contract: Contract) -> Contract:
    return through(contract, lambda kernel: decomposed(kernel, is_native))


def emit(kernel: Kernel, schedule: Schedule, machine: Machine, name: str) -> Source:
    """The source of a legal kernel."""
    check(schedule, kernel)
    return _Loops(kernel, schedule, machine).source(name)


def emit_contract(contract: Contract, tiles: Tiles, name: str) -> Source:
    """The source of a legal contraction."""
    return _Product(contract, tiles).source(name)


@dataclass(frozen=True)
class Place:
    """What is known at a line."""

    index: dict[Axis, str]
    """Open axes: a number, or the numbers of a block."""
    blocks: tuple[Axis, ...] = ()
    """The axes of a block's dims."""
    guards: tuple[str, ...] = ()
    """What must hold for memory to be read."""


class _Writer:
    """Lines of one function, and the values that they have made."""

    def __init__(self, kernel: Kernel) -> None:
        self.operands, self.results = kernel.operands, kernel.results
        self.sizes = {d: f"n{i}" for i, d in enumerate(sizes_of(kernel))}
        self.widths: dict[Axis, int] = {}
        self.lanes = 1
        self.row: Axis | None = None
        """The axis of which a block has all points."""
        self.lines: list[str] = []
        self.depth = 1
        self.number = 0
        self.folds: dict[str, None] = {}
        self.grid: list[tuple[DimLike, int]] = []
        self.at = Place({})
        self.known: dict[Expr, str] = {}
        self.is_streaming = False

    def source(self, name: str) -> Source:
        self.write()
        shapes = (*self.operands, *self.results)
        names = [f"x{i}" for i in range(len(self.operands))]
        names += [f"y{i}" for i in range(len(self.results))]
        names += ["missed", *self.sizes.values()]
        folds = [FOLD.format(f, COMBINE[f].format("a", "b")) for f in self.folds]
        head = ["@triton.jit", f"def {name}({', '.join(names)}):"]
        text = "\n".join([*HEAD, *folds, *head, *(self.lines or ["    pass"]), ""])
        dtypes = (*(s.dtype for s in shapes), DType.I32)
        return Source(name, text, dtypes, tuple(self.sizes), tuple(self.grid))

    def write(self) -> None:
        raise NotImplementedError

    # -- lines -----------------------------------------------------------------------------------

    def do(self, line: str) -> None:
        self.lines.append("    " * self.depth + line)

    def let(self, text: str) -> str:
        self.number += 1
        self.do(f"v{self.number} = {text}")
        return f"v{self.number}"

    @contextmanager
    def scope(self, place: Place) -> Generator[None]:
        """Lines at another place: what varies along axes that mean something else there is
        made anew."""
        at, known = self.at, self.known
        moved = {a for a in place.index if at.index.get(a) != place.index[a]}
        moved |= set(place.blocks) | set(at.blocks) if place.blocks != at.blocks else set()
        self.known = {n: v for n, v in known.items() if moved.isdisjoint(n.free)}
        self.at = place
        yield
        self.at, self.known = at, known

    @contextmanager
    def opened(self, axis: Axis, blocks: tuple[Axis, ...]) -> Generator[None]:
        """A loop over an axis: block by block where it is one of `blocks`, else step by step."""
        self.number += 1
        start, is_lane = f"i{self.number}", axis in blocks
        step = self.widths.get(axis, self.lanes) if is_lane else 1
        self.do(f"for {start} in range(0, {self.dim(axis.extent)}, {step}):")
        self.depth += 1
        index = {**self.at.index, axis: self.block(axis, start) if is_lane else start}
        with self.scope(replace(self.at, index=index, blocks=blocks)):
            yield
        self.depth -= 1

    def program(self, axes: Sequence[tuple[Axis, int]]) -> dict[Axis, str]:
        """This program's first step of each axis, the last axis the fastest."""
        self.grid = [(a.extent, width) for a, width in axes]
        rest, found = self.let("tl.program_id(0).to(tl.int64)"), dict[Axis, str]()
        for axis, width in reversed(axes):
            count = self.let(f"({self.dim(axis.extent)} + {width - 1}) // {width}")
            found[axis] = self.let(f"{rest} % {count} * {width}")
            rest = self.let(f"{rest} // {count}")
        return found

    def block(self, axis: Axis, start: str | int) -> str:
        """The steps of a block, as numbers."""
        width = self.widths.get(axis, self.lanes)
        return self.let(f"{start} + tl.arange(0, {width}).to(tl.int64)")

    # -- indices ---------------------------------------------------------------------------------

    def dim(self, dim: DimLike) -> str:
        return str(dim) if is_static(dim) else self.sizes[dim]

    def position(self, axis: Axis) -> str:
        """The axis' index, turned along its dim of the block."""
        name, blocks = self.at.index[axis], self.at.blocks
        if axis not in blocks or len(blocks) == 1:
            return name
        return f"{name}[{', '.join(':' if b is axis else 'None' for b in blocks)}]"

    def affine(self, at: Affine) -> str:
        parts = [f"{self.position(a)} * {self.dim(c)}" for a, c in at.terms]
        return f"({' + '.join([*parts, self.dim(at.offset)])})"

    def within(self, axes: Iterable[Axis]) -> list[str]:
        """Is a point of the block one of the axes' points?"""
        varied = set(axes)
        return [
            f"({self.position(a)} < {self.dim(a.extent)})" for a in self.at.blocks if a in varied
        ]

    def memory(
        self, base: str, at: Affine, masks: Sequence[str], more: str = ""
    ) -> tuple[str, str]:
        """Addresses, and the mask of those that may be touched; the others are the buffer's start,
        so that addresses have the mask's shape. The interpreter holds a comparison of numbers as
        such a number when it is spread over a block: the last comparison is of blocks."""
        if not masks:
            return f"{base} + {self.affine(at)}{more}", ""
        mask = self.let(f"({' & '.join(masks)}) != 0")
        return f"{base} + tl.where({mask}, {self.affine(at)}{more}, 0)", f", mask={mask}"

    # -- values ----------------------------------------------------------------------------------

    def value(self, root: Expr) -> str:
        """The name of an expression; works on a stack, as bodies may be long chains."""
        stack = [root]
        while stack:
            node = stack[-1]
            lazy = isinstance(node, Reduce | Choose)
            missing = [a for a in node.args if a not in self.known and not lazy]
            if node in self.known or not missing:
                stack.pop()
                if node not in self.known:
                    self.known[node] = self.made(node)
            stack += missing if node not in self.known else []
        return self.known[root]

    def made(self, node: Expr) -> str:
        match node:
            case Const():
                return self.let(constant(node))
            case Size():
                return self.let(
                    rounded(f"(tl.full((), 0, tl.int64) + {self.dim(node.dim)})", node.dtype)
                )
            case Index():
                return self.let(self.affine(node.at))
            case Inside():
                at, low, high = self.let(self.affine(node.at)), node.low, node.high
                return self.let(f"({at} >= {self.dim(low)}) & ({at} < {self.dim(high)})")
            case Load():
                return self.load(node)
            case Apply():
                return self.let(spell(node, [self.known[a] for a in node.args]))
            case Choose():
                return self.chosen(node)
            case Reduce():
                return self.folded(node)
            case _:
                raise UnsupportedError(f"the probe has no {type(node).__name__} of {node.args}")

    def load(self, node: Load) -> str:
        masks = [*self.within(node.free), *self.at.guards]
        row = self.row_of(node, masks) if node.args else ""
        value = f"tl.load({''.join(self.memory(f'x{node.operand}', node.at, masks, row))})"
        if node.dtype is DType.BOOL:
            return self.let(f"{value} != 0")
        return self.let(f"{value}.to({NAMES[node.dtype.compute]})")

    def row_of(self, node: Load, masks: list[str]) -> str:
        """What a gathered row adds to the index. One that is not there is counted and not read:
        a kernel cannot stop its caller."""
        row, bound = f"{self.known[node.args[0]]}.to(tl.int64)", self.dim(node.bound)
        inside = self.let(f"({row} >= 0) & ({row} < {bound})")
        missed = self.let(" & ".join([*masks, f"({inside} == 0)"]))
        self.do(f"tl.atomic_add(missed + tl.where({missed}, 0, 0), 1, mask=({missed}) != 0)")
        masks.append(inside)
        return f" + {row} * {self.dim(node.stride)}"

    def chosen(self, node: Choose) -> str:
        """Each side reads only where it is chosen."""
        sides: list[str] = []
        guard = self.value(node.args[0])
        for side, holds in zip(node.args[1:], (guard, f"({guard} == 0)")):
            with self.scope(replace(self.at, guards=(*self.at.guards, holds))):
                sides.append(self.value(side))
        return self.let(f"tl.where({guard}, {sides[0]}, {sides[1]})")

    def store(self, store: Store, alone: Iterable[Axis] = ()) -> None:
        """What does not vary along an axis belongs to its first point."""
        dtype = self.results[store.result].dtype
        value = self.value(store.value)
        masks = [*self.within(store.at.axes), *(f"({self.position(a)} == 0)" for a in alone)]
        address, mask = self.memory(f"y{store.result}", store.at, masks)
        kind = "tl.int8" if dtype is DType.BOOL else NAMES[dtype]
        extra = ', cache_modifier=".cs"' if self.is_streaming else ""
        self.do(f"tl.store({address}, {value}.to({kind}){mask}{extra})")

    # -- folds -----------------------------------------------------------------------------------

    def folded(self, node: Reduce) -> str:
        if node.dtype is DType.BOOL:
            raise UnsupportedError("the probe folds numbers only")
        if node.axis is self.row:
            return self.across(node.fold, self.masked(node))
        lane = self.lane_of(node)
        along = lane or tuple(a for a in self.at.blocks if a in node.free)
        shape = [self.widths.get(a, self.lanes) for a in along]
        empty = number(node.identity, node.dtype)
        total = self.let(f"tl.zeros({shape}, {NAMES[node.dtype.compute]}) + {empty}")
        self.prepare(node.args)
        with self.opened(node.axis, lane or self.at.blocks):
            self.do(f"{total} = {COMBINE[node.fold].format(total, self.masked(node))}")
        return self.across(node.fold, total) if lane else total

    def lane_of(self, node: Reduce) -> tuple[Axis, ...]:
        """The folded axis, where its steps may be lanes: none is open for what is folded."""
        (body,) = node.args
        is_open = any(a in body.free for a in self.at.blocks if a is not node.axis)
        is_outer = isinstance(body, Reduce) and node.axis not in self.widths
        return () if is_open or is_outer else (node.axis,)

    def masked(self, node: Reduce) -> str:
        """The body, and what changes nothing where the axis has no point."""
        body = self.value(node.args[0])
        masks = self.within([node.axis])
        empty = number(node.identity, node.dtype)
        return self.let(f"tl.where({masks[0]}, {body}, {empty})") if masks else body

    def across(self, fold: str, value: str) -> str:
        self.folds[fold] = None
        return self.let(f"tl.reduce({value}, 0, {fold}_of)")

    def prepare(self, roots: Iterable[Expr]) -> None:
        """Folds that vary with open axes only are made before a loop, not in it."""
        nodes = list(postorder(roots))
        guarded = set(postorder(a for n in nodes if isinstance(n, Choose) for a in n.args[1:]))
        for node in nodes:
            is_ready = isinstance(node, Reduce) and node.free <= self.at.index.keys()
            if is_ready and node not in guarded:
                self.value(node)


class _Loops(_Writer):
    """A loop kernel: axes that no fold binds are the grid's, the others are swept, in the
    schedule's order."""

    def __init__(self, kernel: Kernel, schedule: Schedule, machine: Machine) -> None:
        super().__init__(kernel)
        self.kernel, self.schedule = kernel, schedule
        self.is_streaming = schedule.streaming
        self.lanes = lanes_of(kernel, schedule, machine.vector_bytes)
        vector, tile = schedule.vector, schedule.tile
        self.widths = {a: self.lanes for a in (tile, vector) if a is not None}
        self.row = vector if vector in kernel.reduced and _fits(vector, machine) else None
        if self.row is not None:
            self.widths[self.row] = _power_above(upper_bound(self.row.extent) or 1)
        if schedule.staged and self.row is None:
            raise UnsupportedError(f"kernel {kernel.name} keeps a row that is longer than a block")

    def write(self) -> None:
        bound = self.kernel.reduced
        outer = [a for a in self.schedule.order if a not in bound]
        index = self.program([(a, self.widths.get(a, 1)) for a in outer])
        index = {a: self.block(a, i) if a in self.widths else i for a, i in index.items()}
        blocks = [a for a in outer if a in self.widths]
        if self.row is not None:
            index[self.row] = self.block(self.row, 0)
            blocks.append(self.row)
        swept = tuple(a for a in self.schedule.order if a in bound and a is not self.row)
        with self.scope(Place(index, tuple(blocks))):
            self.level(swept, self.kernel.stores)

    def level(self, axes: tuple[Axis, ...], stores: Sequence[Store]) -> None:
        """Make what is known here, do the stores whose axes are open, go one axis deeper."""
        self.prepare(s.value for s in stores)
        here = [s for s in stores if s.value.free | s.at.axes <= self.at.index.keys()]
        for store in here:
            missing = set(self.at.index) & set(self.schedule.order) - store.at.axes
            self.store(store, [a for a in self.schedule.order if a in missing])
        deeper = [s for s in stores if s not in here]
        if not deeper:
            return
        blocks = (*self.at.blocks, *(a for a in axes[:1] if a in self.widths))
        with self.opened(axes[0], blocks):
            self.level(axes[1:], deeper)


class _Product(_Writer):
    """A contraction: a program is a tile of the result, summed block by block of the last inner
    axis; what follows is done on the finished sums."""

    def __init__(self, contract: Contract, tiles: Tiles) -> None:
        super().__init__(contract.kernel())
        self.contract, self.tiles = contract, tiles
        self.inner = contract.inner[-1]
        self.widths = {
            contract.rows: tiles.rows,
            contract.columns: tiles.columns,
            self.inner: tiles.inner,
        }
        if not contract.sums.is_float:
            raise UnsupportedError("tl.dot sums floats; integers would be summed without it")

    def write(self) -> None:
        c = self.contract
        index = self.program([(a, self.widths.get(a, 1)) for a in c.outer])
        index = {a: self.block(a, i) if a in self.widths else i for a, i in index.items()}
        shape = [self.tiles.rows, self.tiles.columns]
        total = self.let(f"tl.zeros({shape}, {NAMES[c.sums]})")
        with self.scope(Place(index)):
            self.sum_over(c.inner, total)
        with self.scope(Place(index, (c.rows, c.columns))):
            for node in c.epilogue:
                if isinstance(node, Accumulator):
                    self.known[node] = self.let(rounded(total, node.dtype))
            for store in c.stores:
                self.store(store, [a for a in c.outer if a not in store.at.axes])

    def sum_over(self, axes: tuple[Axis, ...], total: str) -> None:
        axis, *rest = axes
        with self.opened(axis, () if rest else axes):
            if rest:
                self.sum_over(tuple(rest), total)
                return
            left = self.side(self.contract.left, (self.contract.rows, axis))
            right = self.side(self.contract.right, (axis, self.contract.columns))
            how = f'input_precision="ieee", out_dtype={NAMES[self.contract.sums]}'
            self.do(f"{total} = tl.dot({left}, {right}, {total}, {how})")

    def side(self, value: Expr, blocks: tuple[Axis, Axis]) -> str:
        """An operand's block, with zeros where the inner axis has no point."""
        shape = [self.widths[a] for a in blocks]
        held = value.dtype.compute
        kind = held if self.tiles.widens else value.dtype
        with self.scope(replace(self.at, blocks=blocks)):
            (mask,) = self.within([self.inner])
            made = f"tl.where({mask}, {self.value(value)}, tl.zeros({shape}, {NAMES[held]}))"
            return self.let(f"{made}.to({NAMES[kind]})")


def _fits(axis: Axis | None, machine: Machine) -> bool:
    longest = upper_bound(axis.extent) if axis is not None else None
    return longest is not None and longest * 4 <= machine.row_bytes


def _power_above(n: int) -> int:
    return 1 << max(0, n - 1).bit_length()
