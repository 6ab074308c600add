"""How attention runs on a GPU: which rows and keys a block has, and by which products.

A block does some rows, the queries of the heads of one kv head, and goes along the keys in tiles.
Where there are few rows, several blocks share the keys of each, and a second launch combines what
they found, in the order of the keys.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import gcd, lcm
from typing import Literal

from rlx.backends.gpu.machine import GpuMachine
from rlx.backends.gpu.schedule.attention_threads import KEY_LOADS, refused_by_threads, thread_rows
from rlx.core.dim import (
    DimLike,
    exact_div,
    is_static,
    lower_bound,
    provably_le,
    upper_bound,
)
from rlx.core.dtype import DType
from rlx.core.layout import Layout
from rlx.kernel.attention import Attention, Bias, Positional, Visibility
from rlx.kernel.refusal import Refusal

MAX_DEPTH = 256
HELD_DEPTH = 128
"""Up to which queries stay in registers."""
FLOATS = (DType.F16, DType.BF16, DType.F32, DType.F64)
PANEL = 64
"""Columns of half floats in 128 bytes, which a swizzled array permutes."""
LANES = 16
"""Neighbouring threads that share rows of products by fma."""
FEW_KEYS = 128
"""Up to which more blocks are worth more than keys that more rows share."""
SPLIT_KEYS = 128
"""The fewest keys that are worth a block of their own."""
MAX_SPLITS = 64
MERGE_CHUNK = 4
"""Columns that a thread combines at a time."""
MAX_CLUSTER = 8
"""Blocks of a cluster on every device that has them."""
BLOCKS_PER_PROCESSOR = {"wgmma": 1, "mma": 2, "fma": 2, "thread": 2}
"""That run at once; where warps split the keys, one, with more copies under way."""
MERGE_KEYS, PART_KEYS = 96, 8
"""Keys that a block does in the time that it takes to combine parts, and one more of them."""
MANY = 1 << 20
"""Blocks that fill any device."""
USUAL_KEYS = 4096
"""Where nothing is known of their number."""
GROUP_ROWS = 64
"""Rows of four warps that multiply together."""
Form = Literal["wgmma", "mma", "fma", "thread"]


@dataclass(frozen=True, slots=True)
class AttentionSchedule:
    """A schedule of one attention."""

    form: Form
    rows: int
    """Of a block."""
    keys: int
    """Of a tile."""
    warps: int
    stages: int
    depth: int
    value_depth: int
    splits: int = 1
    """Blocks that share the keys of their rows."""
    is_cluster: bool = False
    """Are those blocks a cluster, which combines what they found?"""
    splits_warps: bool = False
    """Do the warps of a block share the keys, too, and all have the same rows?"""
    thread_rows: int = 0
    """Rows that a thread has of products by fma, or all by itself."""
    members: int = 0
    """Heads of a group whose rows are taken together; all of them, if 0."""
    takes_turns: bool = False
    """Do groups of four warps start their products one after the other, so that one computes
    weights while another multiplies?"""
    stages_results: bool = False
    """Do results of four warps go by way of shared memory, so that whole lines are stored?"""
    section: int = 0
    """Pairs of batch and heads taken together whose rows come before those of others; all, if 0."""
    blocks: int = 0
    """That go on from one tile of rows to another; 0 where each has its own."""

    @property
    def text(self) -> str:
        """In a few words, for reports."""
        kinds = {"wgmma": "warpgroup products", "mma": "matrix tiles", "thread": "single threads"}
        kind = kinds.get(self.form, self.form)
        group = "a cluster of " if self.is_cluster else ""
        split = f", keys split over {group}{self.splits} blocks" if self.splits > 1 else ""
        return f"flash attention by {kind}, {self.rows} rows, tiles of {self.keys} keys{split}"

    @property
    def padded_depth(self) -> int:
        return _padded(self.depth, 16)

    @property
    def padded_value_depth(self) -> int:
        return _padded(self.value_depth, 16)

    @property
    def warp_tiles(self) -> int:
        """Tiles of 16 rows of a warp."""
        return self.rows // (16 * (1 if self.splits_warps else self.warps))

    @property
    def warp_keys(self) -> int:
        """Keys of a tile that a warp has."""
        return self.keys // self.warps if self.splits_warps else self.keys

    @property
    def owned_columns(self) -> int:
        """Columns of the result that each block of a cluster combines, in chunks of a thread's."""
        return _ceil(self.padded_value_depth, MERGE_CHUNK * self.splits) * MERGE_CHUNK

    @property
    def groups(self) -> int:
        """Of four warps that multiply together."""
        return self.rows // GROUP_ROWS

    @property
    def limits_registers(self) -> bool:
        """Do the warps that copy, a whole group of four, leave registers to the others?"""
        return self.form == "wgmma" and self.warps % 4 == 0

    @property
    def depth_panels(self) -> int:
        """Panels of 64 columns."""
        return _ceil(self.depth, PANEL)

    @property
    def value_panels(self) -> int:
        return _ceil(self.value_depth, PANEL)

    @property
    def holds_queries(self) -> bool:
        return self.padded_depth <= HELD_DEPTH


def _padded(count: int, to: int) -> int:
    return -(-count // to) * to


def panel_widths(columns: int) -> tuple[int, ...]:
    """A multiple of 16 as panels of 64, then of smaller powers of two."""
    widths = [PANEL] * (columns // PANEL)
    widths += [w for w in (PANEL // 2, PANEL // 4) if columns % PANEL & w]
    return tuple(widths)


def choose(form: Attention, machine: GpuMachine) -> AttentionSchedule | Refusal:
    """The schedule that the rules give; nothing is timed."""
    is_alone = not machine.pays_barrier(KEY_LOADS)
    why = _refused(form) or (refused_by_threads(form) if is_alone else None)
    if why is not None:
        return Refusal(f"{form.name}: {why}")
    if is_alone:
        return _split(_by_threads(form, machine), form, machine)
    is_half = form.dtype.compute is not form.dtype
    if is_half and (found := _by_warpgroups(form, machine)) is not None:
        if form.past is not None or form.rotary is not None:
            return Refusal(f"{form.name}: the copy engine reads keys as they are, in one place")
        return found
    made = (_by_tiles if is_half and "mma" in machine.tiles else _by_fma)(form, machine)
    made = _split(made, form, machine)
    if shared_bytes(made, form) > machine.shared_bytes:
        return Refusal(f"{form.name}: a block has no shared memory for its least tiles")
    return made


def _refused(form: Attention) -> str | None:
    if form.dtype not in FLOATS:
        return f"no kernel is written for {form.dtype}"
    if not is_static(form.value_depth) or not is_static(form.depth):
        return "the depth of its values is not known"
    if not 0 < form.depth <= MAX_DEPTH or not 0 < form.value_depth <= MAX_DEPTH:
        return f"its depths are {form.depth} and {form.value_depth}, not of 1 to {MAX_DEPTH}"
    if isinstance(form.mask, Visibility | Bias):
        dtype = form.mask.dtype
        if not (dtype is DType.BOOL or dtype in FLOATS):
            return f"its mask is of {dtype}"
    return None


def _rows(form: Attention) -> int | None:
    """The most rows of a kv head, where it is known."""
    return upper_bound(form.queries * form.group)


# -- warpgroups -----------------------------------------------------------------------------------

WARPGROUP_KEYS = 512
"""Keys from which on products of four warps pay."""
SHORT_KEYS = 2048
"""Of a row, up to which four groups with tiles of 64 keys beat three with tiles of 128."""
CACHED_BYTES = 16 << 20
"""Of keys and values that stay in the last cache until all rows have read them."""


def _by_warpgroups(form: Attention, machine: GpuMachine) -> AttentionSchedule | None:
    """Where there are whole tiles of rows and the copy engine can read the operands."""
    if "wgmma" not in machine.tiles or not machine.has_bulk_copy:
        return None
    if not all(_is_bulk(x) for x in (form.q, form.k, form.v)):
        return None
    rows, keys = _rows(form), upper_bound(form.keys)
    is_long = keys is None or keys >= WARPGROUP_KEYS
    if (rows is not None and rows < 2 * GROUP_ROWS) or not is_long:
        return None
    depth, values = form.depth, int(form.v.dims[3])
    deepest = max(depth, values)
    for groups, keys, stages, takes_turns in _group_tiles(form, machine, deepest):
        rows = groups * GROUP_ROWS
        members = form.group if rows % form.group == 0 else 1
        made = AttentionSchedule(
            "wgmma", rows, keys, 4 * groups + 4, stages, depth, values, members=members,
            takes_turns=takes_turns, blocks=machine.processors,
            section=_section(form, rows, members, machine.processors),
        )  # fmt: skip
        for choice in (replace(made, stages_results=_stages_results(form)), made):
            if shared_bytes(choice, form) <= machine.shared_bytes:
                return choice
    return None


def _group_tiles(
    form: Attention, machine: GpuMachine, deepest: int
) -> Iterator[tuple[int, int, int, bool]]:
    """Groups of 64 rows, keys of a tile, stages, and whether groups take turns, best first: as many
    groups as have registers for their sums and scores, if there are blocks enough."""
    most, enough = upper_bound(form.keys), 2 * machine.processors
    is_short = most is not None and most <= (2 if _is_causal(form) else 1) * SHORT_KEYS
    if deepest <= PANEL and is_short and _fewest_blocks(form, 4 * GROUP_ROWS) >= enough:
        yield 4, 64, 4, False
    if deepest <= PANEL and _fewest_blocks(form, 3 * GROUP_ROWS) >= enough:
        yield 3, 128, 2, True
    yield 2, 128 if deepest <= HELD_DEPTH else 64, 2, deepest < HELD_DEPTH


def _is_causal(form: Attention) -> bool:
    """Do rows see about half of the keys, some few and some all?"""
    return isinstance(form.mask, Positional) and form.mask.window is None


def _section(form: Attention, rows: int, members: int, blocks: int) -> int:
    """As many pairs as keep their keys and values in the cache. Where rows differ in their keys,
    those of whole pairs of rounds, in which blocks have as many keys as each other."""
    keys = upper_bound(form.keys) or USUAL_KEYS
    each = keys * (form.depth + int(form.v.dims[3])) * form.dtype.itemsize
    share = form.group // members
    fit = most = share * (2 * CACHED_BYTES // each)
    if not _is_causal(form):
        fit = share * max(1, CACHED_BYTES // each)
    else:
        tiles = row_tiles_of(form, rows, members)
        unit = lcm(share, 2 * blocks // gcd(2 * blocks, tiles)) if is_static(tiles) else fit + 1
        fit = fit // unit * unit
    pairs = upper_bound(form.batch * (form.heads // members))
    return fit if pairs is None or pairs > most else 0


def _is_bulk(layout: Layout) -> bool:
    """Are rows contiguous, in memory order and at multiples of 16 bytes?"""
    *others, step = layout.strides
    apart = [s for d, s in zip(layout.dims, others) if d != 1]
    whole = all(exact_div(x, 8) is not None for x in (*apart, layout.offset))
    return step == 1 and whole and all(provably_le(0, s) for s in apart)


def _stages_results(form: Attention) -> bool:
    """Are they stored in vectors of 16 bytes?"""
    return _is_bulk(form.out) and int(form.out.dims[3]) % 8 == 0


def panels_bytes(rows: int, panels: int) -> int:
    """Of panels of 64 half floats."""
    return rows * panels * PANEL * 2


def warpgroup_registers(groups: int) -> tuple[int, int]:
    """Of the warps that copy, and of those that multiply: all of a processor's 64 K."""
    return {1: (56, 256), 2: (24, 240), 3: (32, 160), 4: (24, 112)}[groups]


# -- matrix tiles ---------------------------------------------------------------------------------


def _by_tiles(form: Attention, machine: GpuMachine) -> AttentionSchedule:
    depth, values = form.depth, int(form.v.dims[3])
    warps = min(4, machine.max_block // machine.warp)
    most = _rows(form)
    if most is not None and most <= 16:
        keys = (32 if depth + values <= 2 * PANEL else 16) * warps
        few = AttentionSchedule("mma", 16, keys, warps, 4, depth, values, splits_warps=True)
        return _fitted(few, form, machine)
    most_keys = upper_bound(form.keys)
    is_long = most_keys is None or most_keys > FEW_KEYS
    each = 2 if is_long and max(depth, values) <= PANEL else 1
    keys = 64 if max(depth, values) <= HELD_DEPTH else 32
    made = AttentionSchedule("mma", 16 * warps * each, keys, warps, 2, depth, values)
    return _fitted(_narrowed(made, form, machine), form, machine)


def _narrowed(
    schedule: AttentionSchedule, form: Attention, machine: GpuMachine
) -> AttentionSchedule:
    """Fewer rows where there are few, or blocks would not fill the device."""
    most = _rows(form)
    while schedule.rows > 16:
        fits = most is None or most > schedule.rows // 2
        is_full = _blocks(form, schedule.rows) >= 2 * machine.processors
        if fits and (is_full or schedule.warp_tiles == 1):
            break
        rows = schedule.rows // 2
        warps = schedule.warps if schedule.warp_tiles > 1 else schedule.warps // 2
        schedule = replace(schedule, rows=rows, warps=warps)
    return schedule


def _blocks(form: Attention, rows: int) -> int:
    """The most blocks; as many as fill any device where that is not known."""
    most = upper_bound(_block_count(form, rows))
    return MANY if most is None else max(most, 1)


def _fewest_blocks(form: Attention, rows: int) -> int:
    return max(lower_bound(_block_count(form, rows)), form.kv_heads)


def _block_count(form: Attention, rows: int) -> DimLike:
    return row_tiles_of(form, rows) * form.batch * form.kv_heads


def row_tiles_of(form: Attention, rows: int, members: int = 0) -> DimLike:
    return (form.queries * (members or form.group) + (rows - 1)) // rows


def _fitted(schedule: AttentionSchedule, form: Attention, machine: GpuMachine) -> AttentionSchedule:
    """Smaller tiles until the block's shared memory is enough."""
    most = upper_bound(form.keys)
    while schedule.warp_keys > 16 and most is not None and most <= schedule.keys // 2:
        schedule = replace(schedule, keys=schedule.keys // 2)
    while shared_bytes(schedule, form) > machine.shared_bytes:
        smaller = _smaller(schedule)
        if smaller is None:
            break
        schedule = smaller
    return schedule


def _smaller(schedule: AttentionSchedule) -> AttentionSchedule | None:
    if schedule.splits_warps:
        return _smaller_split(schedule)
    if schedule.keys > 32:
        return replace(schedule, keys=schedule.keys // 2)
    if schedule.stages > 1:
        return replace(schedule, stages=1)
    if schedule.keys > 16:
        return replace(schedule, keys=16)
    if schedule.form == "mma" and schedule.warp_tiles > 1:
        return replace(schedule, rows=schedule.rows // 2)
    if schedule.form == "fma" and schedule.thread_rows > 1:
        half = schedule.thread_rows // 2
        rows = schedule.rows // schedule.thread_rows * half
        return replace(schedule, rows=rows, thread_rows=half)
    if schedule.warps > 1:
        return replace(schedule, rows=schedule.rows // 2, warps=schedule.warps // 2)
    return None


def _smaller_split(schedule: AttentionSchedule) -> AttentionSchedule | None:
    if schedule.stages > 2:
        return replace(schedule, stages=schedule.stages // 2)
    if schedule.warp_keys > 16:
        return replace(schedule, keys=schedule.keys // 2)
    if schedule.stages > 1:
        return replace(schedule, stages=1)
    if schedule.warps > 1:
        return replace(schedule, keys=schedule.keys // 2, warps=schedule.warps // 2)
    return None


def shared_bytes(schedule: AttentionSchedule, form: Attention) -> int:
    """Of a block."""
    if schedule.form == "fma":
        return fma_elements(schedule, form) * form.sums.itemsize
    if schedule.form == "wgmma":
        keys, panels = schedule.keys, schedule.depth_panels
        each = panels_bytes(keys, panels) + panels_bytes(keys, schedule.value_panels)
        barriers = 16 * (1 + 2 * schedule.stages) + 8 * schedule.takes_turns * schedule.groups
        rows = panels + (schedule.value_panels if schedule.stages_results else 0)
        return panels_bytes(schedule.rows, rows) + schedule.stages * each + barriers
    depth, values = schedule.padded_depth, schedule.padded_value_depth
    each = schedule.keys * (depth + values)
    tiles = (schedule.rows * depth + schedule.stages * each) * form.dtype.itemsize
    parts = schedule.warps * (values + 2) if schedule.splits_warps else 0
    parts += schedule.splits * (schedule.owned_columns + 2) if schedule.is_cluster else 0
    return tiles + parts * schedule.rows * form.sums.itemsize


# -- fma ------------------------------------------------------------------------------------------


def fma_width(form: Attention) -> int:
    """Numbers of 16 bytes."""
    return 16 // form.sums.itemsize


def fma_pitches(schedule: AttentionSchedule, form: Attention) -> tuple[int, int, int]:
    """Of rows of queries and keys, of values, and of weights: a vector more than a multiple of all
    banks, so that neighbouring rows are read without bank conflicts."""
    width = fma_width(form)
    depth = _padded(schedule.depth, 2 * width)
    return depth + width, _padded(schedule.value_depth, LANES), schedule.keys + width


def fma_elements(schedule: AttentionSchedule, form: Attention) -> int:
    depth, values, keys = fma_pitches(schedule, form)
    rows = schedule.rows * (depth + keys)
    return rows + schedule.stages * schedule.keys * (depth + values)


def _by_fma(form: Attention, machine: GpuMachine) -> AttentionSchedule:
    depth, values = form.depth, int(form.v.dims[3])
    threads = min(4, machine.max_block // machine.lanes) * machine.lanes
    each = 8 if max(depth, values) <= HELD_DEPTH else 4
    each = each if form.sums is DType.F32 else 4
    rows, warps = threads // LANES * each, threads // machine.warp
    made = AttentionSchedule("fma", rows, 64, warps, 2, depth, values, thread_rows=each)
    most = _rows(form)
    while made.thread_rows > 1 and (
        (most is not None and most <= made.rows // 2)
        or _blocks(form, made.rows) < machine.processors
    ):
        half = made.thread_rows // 2
        made = replace(made, rows=made.rows // 2, thread_rows=half)
    return _fitted(made, form, machine)


def _by_threads(form: Attention, machine: GpuMachine) -> AttentionSchedule:
    values = int(form.v.dims[3])
    each, threads, keys = thread_rows(values, _rows(form), _blocks(form, MANY), machine)
    known = threads * each, keys, threads // machine.warp, 1, form.depth, values
    return AttentionSchedule("thread", *known, thread_rows=each)


# -- splits ---------------------------------------------------------------------------------------


def _split(schedule: AttentionSchedule, form: Attention, machine: GpuMachine) -> AttentionSchedule:
    """Several blocks for the keys of each where blocks do not fill the device: as a cluster, if it
    can be one. Of few rows each, what is left to combine is little, so a batch that is not known
    counts as one; of others it must be known that they are few."""
    most = upper_bound(form.keys)
    worth = MAX_SPLITS if most is None else _ceil(most, max(SPLIT_KEYS, schedule.keys))
    each = 1 if schedule.splits_warps else BLOCKS_PER_PROCESSOR[schedule.form]
    counted = _fewest_blocks if schedule.splits_warps else _blocks
    places = each * machine.processors
    blocks = counted(form, schedule.rows)
    splits = _splits(blocks, places, most or USUAL_KEYS, worth) if blocks < places else 1
    if splits == 1:
        return schedule
    is_cluster = machine.has_clusters and schedule.splits_warps and splits <= MAX_CLUSTER
    stages = schedule.stages
    if most is not None:
        stages = min(stages, 1 + _ceil(most, splits * schedule.keys))
    made = replace(schedule, splits=splits, is_cluster=is_cluster, stages=stages)
    if is_cluster and shared_bytes(made, form) > machine.shared_bytes:
        return replace(made, is_cluster=False)
    return made


def _splits(blocks: int, places: int, keys: int, worth: int) -> int:
    """The splits that take the least time, where so many blocks run at once: in keys of a block
    that are done one after the other."""

    def time_keys(splits: int) -> float:
        rounds = _ceil(splits * blocks, places)
        merge = MERGE_KEYS + PART_KEYS * splits if splits > 1 else 0
        return rounds * keys / splits + merge

    return min(range(1, max(1, min(worth, MAX_SPLITS)) + 1), key=time_keys)


def _ceil(a: int, b: int) -> int:
    return -(-a // b)
