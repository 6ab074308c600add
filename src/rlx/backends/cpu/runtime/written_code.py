"""Inputs that a call writes, in LLVM text: that nothing else shares their memory, and that their
library knows of the change."""

from __future__ import annotations

from rlx.backends.cpu.runtime.argument_checks import note_edges
from rlx.backends.cpu.runtime.binding_table import (
    NUM_VIEW_SLOTS,
    NUM_WRITTEN_SLOTS,
    Exchange,
    InputSlot,
    Slot,
    ViewSlot,
    WrittenSlot,
)
from rlx.backends.cpu.runtime.control_code import Function


def written_text() -> str:
    """`note_inputs`, `is_apart`, `count_change` and `begin_writes`."""
    return "\n".join([_note_inputs(), _is_apart(), _count_change(), _begin_writes()])


def _note_inputs() -> str:
    """Where the inputs begin and end."""
    f = Function("define internal void @note_inputs(ptr %table, ptr %views, ptr %edges)")
    at = f.slot("ptr")
    f.put(f"ptr {f.address('%table', Slot.INPUTS)}", at)
    with f.count(f.word("%table", Slot.NUM_INPUTS)) as i:
        view, record = f.nth("%views", f.let(f"mul i64 {i}, {NUM_VIEW_SLOTS}")), f.load("ptr", at)
        array = f.address(view, ViewSlot.DATA), f.address(view, ViewSlot.DIMS)
        note_edges(f, f.nth("%edges", f.let(f"shl i64 {i}, 1")), array, record)
        step = f.add(f.word(record, InputSlot.RANK), InputSlot.DIMS)
        f.put(f"ptr {f.nth(record, step)}", at)
    f.give()
    return f.text()


def _is_apart() -> str:
    """Has each input that is written memory that is known to be apart from weights and from others
    that are written, and is it apart from all other inputs? Edges of what is written are
    cleared."""
    f = Function("define internal i1 @is_apart(ptr %table, ptr %exchange, ptr %edges)")
    count, records = f.word("%exchange", Exchange.NUM_WRITTEN), _records(f)
    with f.count(count) as i:
        record = f.nth(records, f.let(f"mul i64 {i}, {NUM_WRITTEN_SLOTS}"))
        pair = f.nth("%edges", f.let(f"shl i64 {f.word(record, WrittenSlot.INPUT)}, 1"))
        for number, known in enumerate((WrittenSlot.BEGIN, WrittenSlot.END)):
            differs = f.test("ne", "i64", f.word(pair, number), f.word(record, known))
            f.give_if(differs, "i1 false")
            f.put("i64 0", pair, number)
    with f.count(count) as i:
        record = f.nth(records, f.let(f"mul i64 {i}, {NUM_WRITTEN_SLOTS}"))
        own = (f"i64 {f.word(record, s)}" for s in (WrittenSlot.BEGIN, WrittenSlot.END))
        inputs = f"i64 {f.word('%table', Slot.NUM_INPUTS)}"
        apart = f.call("i1", "@apart", "ptr %edges", inputs, *own)
        f.give_if(f.let(f"xor i1 {apart}, true"), "i1 false")
    f.give("i1 true")
    return f.text()


def _count_change() -> str:
    """Count up the number of changes of an object, where its library counts them."""
    f = Function("define internal void @count_change(ptr %exchange, ptr %object)")
    behind = f.load("ptr", "%object", f.word("%exchange", Exchange.POINTER))
    counts = f.load("ptr", behind, f.word("%exchange", Exchange.COUNTER))
    with f.when(f.test("ne", "ptr", counts, "null")):
        number = f.at(counts, f.word("%exchange", Exchange.NUMBER))
        f.let(f"atomicrmw add ptr {number}, i32 1 monotonic")
    f.give()
    return f.text()


def _begin_writes() -> str:
    """May the call write its inputs where they are? Then they count as changed."""
    f = Function(
        "define internal i1 @begin_writes(ptr %table, ptr %exchange, ptr %args, ptr %views)"
    )
    count = f.word("%exchange", Exchange.NUM_WRITTEN)
    f.give_if(f.test("eq", "i64", count, 0), "i1 true")
    size = f.let(f"shl i64 {f.word('%table', Slot.NUM_INPUTS)}, 1")
    edges = f.let(f"alloca i64, i64 {size}, align 16")
    f.call("void", "@note_inputs", "ptr %table", "ptr %views", f"ptr {edges}")
    apart = f.call("i1", "@is_apart", "ptr %table", "ptr %exchange", f"ptr {edges}")
    f.give_if(f.let(f"xor i1 {apart}, true"), "i1 false")
    records = _records(f)
    with f.count(count) as i:
        record = f.nth(records, f.let(f"mul i64 {i}, {NUM_WRITTEN_SLOTS}"))
        number = f.word(record, WrittenSlot.INPUT)
        value = f.call("ptr", "@source_of", "ptr %exchange", "ptr %args", f"i64 {number}")
        f.call("void", "@count_change", "ptr %exchange", f"ptr {value}")
    f.give("i1 true")
    return f.text()


def _records(f: Function) -> str:
    return f.address("%exchange", Exchange.WRITTEN)
