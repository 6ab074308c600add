"""`python -m rlx.ops`: the op table as a Markdown page."""

from __future__ import annotations

from rlx.ops.op import Op, table


def page() -> str:
    """One row per op, by family; then what has no lowering, and why."""
    ops = table()
    bare = [o for o in ops.values() if o.lower is None]
    lines = [
        "# Ops",
        "",
        "Made from the op table by `make docs`; do not edit. Arrays are positional, attributes",
        "keyword-only. The letters and dims of signatures are explained in `src/rlx/core/sig.py`.",
        "",
        f"{len(ops)} ops, {len(bare)} of them without a lowering.",
    ]
    for family in dict.fromkeys(o.page for o in ops.values()):
        rows = [_row(o) for o in ops.values() if o.page == family]
        lines += [
            "",
            f"## {family}",
            "",
            "| op | signature | attributes | meaning |",
            "|---|---|---|---|",
            *rows,
        ]
    reasons = dict.fromkeys(o.why_no_lowering for o in bare)
    lines += ["", "## Without a lowering", ""]
    for reason in reasons:
        names = ", ".join(o.name for o in bare if o.why_no_lowering == reason)
        lines.append(f"- {reason}: {names}")
    return "\n".join(lines) + "\n"


def _row(op: Op) -> str:
    names = " ".join([f"`{op.name}`", *(f"`{a}`" for a in op.aliases)])
    attrs = ", ".join(op.attr_specs) or "–"
    meaning = " ".join(op.doc.split()).replace("|", "\\|")
    return f"| {names} | `{op.signature.text.strip()}` | {attrs} | {meaning} |"


if __name__ == "__main__":
    print(page(), end="")
