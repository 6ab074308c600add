"""Looking at the arrays of a call, in LLVM text: part of the way in from Python."""

from __future__ import annotations

from rlx.backends.cpu.runtime.binding_table import (
    NUM_SOURCE_SLOTS,
    NUM_VIEW_SLOTS,
    Exchange,
    InputSlot,
    Slot,
    SourceSlot,
    ViewSlot,
)
from rlx.backends.cpu.runtime.control_code import Function
from rlx.backends.cpu.runtime.cpython_layout import ALIGNED, CONTIGUOUS, Field


def checks_text() -> str:
    """What is asked of the arrays of a call."""
    parts = [_array_fits(), _array_view(), _source_of(), _input_view(), _inputs_fit()]
    return "\n".join([*parts, _same_dims(), _dims_fit(), _bytes_of(), _apart()])


def _array_fits() -> str:
    """Is it an array, and no subclass, of a dtype and rank, C-contiguous?"""
    f = Function("define internal i1 @array_fits(ptr %table, ptr %record, ptr %array, i32 %flags)")
    kind = f.load("ptr", "%array", Field.TYPE)
    array_type = f.address("%table", Slot.ARRAY_TYPE)
    f.give_if(f.test("ne", "ptr", kind, array_type), "i1 false")
    descr = f.test("eq", "ptr", f.load("ptr", "%array", Field.DESCR), f.address("%record"))
    rank = f.let(f"trunc i64 {f.word('%record', InputSlot.RANK)} to i32")
    same = f.test("eq", "i32", f.load("i32", "%array", Field.RANK), rank)
    flags = f.let(f"and i32 {f.load('i32', '%array', Field.FLAGS)}, %flags")
    plain = f.test("eq", "i32", flags, "%flags")
    known = f.let(f"and i1 {descr}, {same}")
    f.give(f"i1 {f.let(f'and i1 {known}, {plain}')}")
    return f.text()


def _array_view() -> str:
    """Note where an array begins and where its dims are, if it fits."""
    f = Function("define internal i1 @array_view(ptr %table, ptr %record, ptr %array, ptr %view)")
    given = "ptr %table", "ptr %record", "ptr %array", f"i32 {CONTIGUOUS | ALIGNED}"
    fits = f.call("i1", "@array_fits", *given)
    f.give_if(f.let(f"xor i1 {fits}, true"), "i1 false")
    f.put(f"ptr {f.load('ptr', '%array', Field.DATA)}", "%view", ViewSlot.DATA)
    f.put(f"ptr {f.load('ptr', '%array', Field.DIMS)}", "%view", ViewSlot.DIMS)
    f.give("i1 true")
    return f.text()


def _source_of() -> str:
    """The object of an input, as the words of an exchange state."""
    f = Function("define internal ptr @source_of(ptr %exchange, ptr %args, i64 %i)")
    source = _source(f)
    place = f.word(source, SourceSlot.PLACE)
    with f.when(f.test("sge", "i64", place, 0)):
        f.give(f"ptr {f.address('%args', place)}")
    f.give(f"ptr {f.address(source, SourceSlot.OBJECT)}")
    return f.text()


def _source(f: Function) -> str:
    """The record of input `%i`."""
    step = f.let(f"mul i64 %i, {NUM_SOURCE_SLOTS}")
    return f.nth(f.address("%exchange", Exchange.SOURCES), step)


def _input_view() -> str:
    """An input, which is an argument, or what the words of an exchange state."""
    f = Function(
        "define internal i1 @input_view(ptr %table, ptr %exchange, ptr %args, i64 %i, ptr %record, "
        "ptr %view)"
    )
    with f.when(f.test("eq", "ptr", "%exchange", "null")):
        given = "ptr %table", "ptr %record", f"ptr {f.address('%args', '%i')}", "ptr %view"
        f.give(f"i1 {f.call('i1', '@array_view', *given)}")
    value = f.call("ptr", "@source_of", "ptr %exchange", "ptr %args", "i64 %i")
    order = f"ptr {f.address(_source(f), SourceSlot.ORDER)}"
    given = "ptr %exchange", "ptr %record", f"ptr {value}", order, "ptr %view"
    f.give(f"i1 {f.call('i1', '@tensor_view', *given)}")
    return f.text()


def _inputs_fit() -> str:
    """Are the inputs as they should be? Notes their addresses and the sizes they give."""
    f = Function(
        "define internal i1 @inputs_fit(ptr %table, ptr %exchange, ptr %args, ptr %views, "
        "ptr %symbols, ptr %places)"
    )
    at = f.slot("ptr")
    f.do(f"store ptr {f.address('%table', Slot.INPUTS)}, ptr {at}")
    with f.count(f.word("%table", Slot.NUM_INPUTS)) as i:
        record, view = f.load("ptr", at), f.nth("%views", f.let(f"mul i64 {i}, {NUM_VIEW_SLOTS}"))
        given = "ptr %table", "ptr %exchange", "ptr %args", f"i64 {i}", f"ptr {record}"
        fits = f.call("i1", "@input_view", *given, f"ptr {view}")
        f.give_if(f.let(f"xor i1 {fits}, true"), "i1 false")
        f.put(f"ptr {f.address(view, ViewSlot.DATA)}", "%places", i)
        dims, numbers = f.address(view, ViewSlot.DIMS), f.nth(record, InputSlot.DIMS)
        rank = f.word(record, InputSlot.RANK)
        with f.count(rank) as axis:
            number = f.word(numbers, axis)
            with f.when(f.test("sge", "i64", number, 0)):
                f.put(f"i64 {f.word(dims, axis)}", "%symbols", number)
        f.do(f"store ptr {f.nth(numbers, rank)}, ptr {at}")
    f.give("i1 true")
    return f.text()


def _dims_fit() -> str:
    """Has every input the dims that the model expects?"""
    f = Function("define internal i1 @dims_fit(ptr %table, ptr %views, ptr %needs)")
    at, expected = f.slot("ptr"), f.slot("ptr")
    f.do(f"store ptr {f.address('%table', Slot.INPUTS)}, ptr {at}")
    start = f.nth("%needs", f.word("%table", Slot.INPUT_DIMS))
    f.do(f"store ptr {start}, ptr {expected}")
    with f.count(f.word("%table", Slot.NUM_INPUTS)) as i:
        record, view = f.load("ptr", at), f.nth("%views", f.let(f"mul i64 {i}, {NUM_VIEW_SLOTS}"))
        rank, wanted = f.word(record, InputSlot.RANK), f.load("ptr", expected)
        dims = f.address(view, ViewSlot.DIMS)
        same = f.call("i1", "@same_dims", f"ptr {dims}", f"i64 {rank}", f"ptr {wanted}")
        f.give_if(f.let(f"xor i1 {same}, true"), "i1 false")
        f.do(f"store ptr {f.nth(wanted, rank)}, ptr {expected}")
        f.do(f"store ptr {f.nth(record, f.add(rank, InputSlot.DIMS))}, ptr {at}")
    f.give("i1 true")
    return f.text()


def _same_dims() -> str:
    f = Function("define internal i1 @same_dims(ptr %dims, i64 %rank, ptr %expected)")
    with f.count("%rank") as axis:
        differs = f.test("ne", "i64", f.word("%dims", axis), f.word("%expected", axis))
        f.give_if(differs, "i1 false")
    f.give("i1 true")
    return f.text()


def _bytes_of() -> str:
    f = Function("define internal i64 @bytes_of(ptr %dims, i64 %rank, i64 %item)")
    total = f.slot()
    f.put("i64 %item", total)
    with f.count("%rank") as axis:
        size = f.word("%dims", axis)
        f.put(f"i64 {f.let(f'mul i64 {f.word(total)}, {size}')}", total)
    f.give(f"i64 {f.word(total)}")
    return f.text()


def _apart() -> str:
    """Do the bytes from `low` to `high` belong to none of the arrays whose edges are given?"""
    f = Function("define internal i1 @apart(ptr %edges, i64 %count, i64 %low, i64 %high)")
    with f.count("%count") as i:
        pair = f.nth("%edges", f.let(f"shl i64 {i}, 1"))
        before = f.test("ult", "i64", "%low", f.word(pair, 1))
        after = f.test("ult", "i64", f.word(pair, 0), "%high")
        f.give_if(f.let(f"and i1 {before}, {after}"), "i1 false")
    f.give("i1 true")
    return f.text()


def note_edges(f: Function, pair: str, array: tuple[str, str], record: str) -> None:
    """Where an array of these data and dims begins and ends."""
    data, dims = array
    begin = f.let(f"ptrtoint ptr {data} to i64")
    rank, item = (f.word(record, s) for s in (InputSlot.RANK, InputSlot.ITEM_BYTES))
    size = f.call("i64", "@bytes_of", f"ptr {dims}", f"i64 {rank}", f"i64 {item}")
    f.put(f"i64 {begin}", pair, 0)
    f.put(f"i64 {f.add(begin, size)}", pair, 1)
