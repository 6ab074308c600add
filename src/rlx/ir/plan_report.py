"""Plan visualisation: a table for the terminal, and a buffer timeline as SVG."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from rlx.core.dim import evaluate
from rlx.ir.lir import BufferPlan, Slot, Space
from rlx.ir.mir import Node

PALETTE = ("#4e79a7", "#f28e2b", "#59a14f", "#e15759", "#76b7b2", "#b07aa1", "#edc948", "#9c755f")
WIDTH, HEIGHT, MARGIN = 960.0, 480.0, 48.0


@dataclass(frozen=True, slots=True)
class Row:
    """One buffer: its offset, and its first and last step (-1 is before the first)."""

    node: Node
    slot: Slot
    offset: int
    size: int
    birth: int
    death: int


def rows_of(plan: BufferPlan) -> list[Row]:
    """The buffers of the arena, by offset and step, at the plan's representative sizes."""
    birth, death = lives_of(plan)
    rows = [
        Row(
            node,
            slot,
            _value(plan, slot.offset),
            _value(plan, slot.size),
            birth.get(node, -1),  # of a plan that is not sound
            death.get(node, -1),
        )
        for node, slot in plan.assignments.items()
        if slot.space is Space.ARENA
    ]
    return sorted(rows, key=lambda row: (row.offset, row.birth))


def _value(plan: BufferPlan, dim: object) -> int:
    return evaluate(dim, plan.representative)  # pyright: ignore[reportArgumentType]


def lives_of(plan: BufferPlan) -> tuple[dict[Node, int], dict[Node, int]]:
    """First and last step of each buffer."""
    end = len(plan.schedule)
    made_at = {kernel: step for step, kernel in enumerate(plan.schedule)}
    birth: dict[Node, int] = {node: -1 for _, node in plan.io.inputs}
    for node in plan.phases:
        step = made_at.get(node.inputs[0] if node.op == "item" else node)
        if step is not None and not node.has_items:
            root = plan.root(node)
            birth[root] = min(birth.get(root, end), step)
    death = dict(birth)
    for step, kernel in enumerate(plan.schedule):
        death.update((plan.root(operand), step) for operand in kernel.inputs)
    death.update((plan.root(o), end) for o in [*plan.io.outputs, *(n for _, n in plan.io.inputs)])
    return birth, death


def report(plan: BufferPlan) -> str:
    """The arena as a table, with totals first."""
    sizes = ", ".join(f"{k}={v}" for k, v in plan.representative.items())
    unshared, saved = plan.total_unshared_bytes, plan.bytes_saved
    share = f" ({saved / unshared:.0%})" if unshared else ""
    head = [
        f"arena {plan.arena_bytes:,} bytes{f' at {sizes}' if sizes else ''}; "
        f"unshared {unshared:,}; saved {saved:,}{share}",
        f"weights {plan.weight_bytes:,} bytes; {len(plan.schedule)} kernels; "
        f"{len(plan.views)} views; {len(plan.in_place)} in place; alignment {plan.alignment}",
    ]
    if plan.dynamic_symbols:
        head.append(f"arena formula: {plan.arena_formula}")
    if plan.capacities:
        head.append(f"grown at run time: {', '.join(plan.capacities)}")
    table = [("offset", "bytes", "steps", "node", "")]
    table += [_cells(plan, row) for row in rows_of(plan)]
    return "\n".join(head + _aligned(table)) + "\n"


def _cells(plan: BufferPlan, row: Row) -> tuple[str, str, str, str, str]:
    over = plan.in_place.get(row.node)
    note = f"over {over.label}" if over is not None else "external" if row.slot.is_external else ""
    steps = f"{_step(row.birth)}..{row.death}"
    return f"{row.offset:,}", f"{row.size:,}", steps, row.node.label, note


def _step(step: int) -> str:
    return "start" if step < 0 else str(step)


def _aligned(table: Sequence[tuple[str, ...]]) -> list[str]:
    """Numbers to the right, names to the left."""
    widths = [max(len(row[i]) for row in table) for i in range(len(table[0]))]
    return [
        "  ".join(
            cell.rjust(width) if i < 2 else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths))
        ).rstrip()
        for row in table
    ]


def report_svg(plan: BufferPlan) -> str:
    """Bytes upward, steps to the right, a box per buffer; its title says what it is."""
    steps, top = len(plan.schedule) + 2, max(1, plan.arena_bytes)
    x_step, y_byte = (WIDTH - 2 * MARGIN) / steps, (HEIGHT - 2 * MARGIN) / top
    boxes = [_box(row, i, x_step, y_byte) for i, row in enumerate(rows_of(plan)) if row.size]
    caption = f"{plan.arena_bytes:,} bytes, {len(plan.schedule)} kernels"
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH:g} {HEIGHT:g}" '
            'font-family="sans-serif" font-size="12">',
            f'<rect width="{WIDTH:g}" height="{HEIGHT:g}" fill="#ffffff"/>',
            f'<text x="{MARGIN:g}" y="{MARGIN / 2:g}">{escape(caption, quote=False)}</text>',
            *boxes,
            "</svg>\n",
        ]
    )


def _box(row: Row, index: int, x_step: float, y_byte: float) -> str:
    """A buffer that lives in one step is one step wide."""
    x, width = MARGIN + (row.birth + 1) * x_step, (row.death - row.birth + 1) * x_step
    y = HEIGHT - MARGIN - (row.offset + row.size) * y_byte
    title = f"{row.node.label}: {row.size:,} bytes at {row.offset:,}, steps {_step(row.birth)}"
    return (
        f'<rect x="{x:.2f}" y="{y:.2f}" width="{width:.2f}" height="{row.size * y_byte:.2f}" '
        f'fill="{PALETTE[index % len(PALETTE)]}" stroke="#ffffff" stroke-width="0.5">'
        f"<title>{escape(title, quote=False)} to {row.death}</title></rect>"
    )
