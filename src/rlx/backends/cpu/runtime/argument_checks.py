"""Looking at the arrays of a call, in LLVM text: part of the way in from Python."""

from __future__ import annotations

from rlx.backends.cpu.runtime.binding_table import InputSlot, Slot
from rlx.backends.cpu.runtime.control_code import Function
from rlx.backends.cpu.runtime.cpython_layout import ALIGNED, CONTIGUOUS, Field


def checks_text() -> str:
    """`array_fits`, `inputs_fit`, `dims_fit`, `same_dims`, `bytes_of` and `apart`."""
    parts = [_array_fits(), _inputs_fit(), _same_dims(), _dims_fit(), _bytes_of(), _apart()]
    return "\n".join(parts)


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


def _inputs_fit() -> str:
    """Are the inputs arrays as they should be? Notes their addresses and the sizes they give."""
    f = Function("define internal i1 @inputs_fit(ptr %table, ptr %args, ptr %symbols, ptr %places)")
    at = f.slot("ptr")
    f.do(f"store ptr {f.address('%table', Slot.INPUTS)}, ptr {at}")
    with f.count(f.word("%table", Slot.NUM_INPUTS)) as i:
        array, record = f.address("%args", i), f.load("ptr", at)
        given = "ptr %table", f"ptr {record}", f"ptr {array}", f"i32 {CONTIGUOUS | ALIGNED}"
        fits = f.call("i1", "@array_fits", *given)
        f.give_if(f.let(f"xor i1 {fits}, true"), "i1 false")
        f.put(f"ptr {f.load('ptr', array, Field.DATA)}", "%places", i)
        dims, numbers = f.load("ptr", array, Field.DIMS), f.nth(record, InputSlot.DIMS)
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
    f = Function("define internal i1 @dims_fit(ptr %table, ptr %args, ptr %needs)")
    at = f.slot("ptr")
    start = f.nth("%needs", f.word("%table", Slot.INPUT_DIMS))
    f.do(f"store ptr {start}, ptr {at}")
    with f.count(f.word("%table", Slot.NUM_INPUTS)) as i:
        array, expected = f.address("%args", i), f.load("ptr", at)
        rank = f.let(f"zext i32 {f.load('i32', array, Field.RANK)} to i64")
        same = f.call("i1", "@same_dims", f"ptr {array}", f"ptr {expected}")
        f.give_if(f.let(f"xor i1 {same}, true"), "i1 false")
        f.do(f"store ptr {f.nth(expected, rank)}, ptr {at}")
    f.give("i1 true")
    return f.text()


def _same_dims() -> str:
    f = Function("define internal i1 @same_dims(ptr %array, ptr %expected)")
    rank = f.let(f"zext i32 {f.load('i32', '%array', Field.RANK)} to i64")
    dims = f.load("ptr", "%array", Field.DIMS)
    with f.count(rank) as axis:
        differs = f.test("ne", "i64", f.word(dims, axis), f.word("%expected", axis))
        f.give_if(differs, "i1 false")
    f.give("i1 true")
    return f.text()


def _bytes_of() -> str:
    f = Function("define internal i64 @bytes_of(ptr %array, i64 %item)")
    total = f.slot()
    f.put("i64 %item", total)
    dims = f.load("ptr", "%array", Field.DIMS)
    with f.count(f.let(f"zext i32 {f.load('i32', '%array', Field.RANK)} to i64")) as axis:
        f.put(f"i64 {f.let(f'mul i64 {f.word(total)}, {f.word(dims, axis)}')}", total)
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


def note_edges(f: Function, pair: str, array: str, item: str) -> None:
    """Where an array begins and ends."""
    begin = f.let(f"ptrtoint ptr {f.load('ptr', array, Field.DATA)} to i64")
    size = f.call("i64", "@bytes_of", f"ptr {array}", f"i64 {item}")
    f.put(f"i64 {begin}", pair, 0)
    f.put(f"i64 {f.add(begin, size)}", pair, 1)
