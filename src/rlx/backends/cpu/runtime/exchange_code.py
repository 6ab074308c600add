"""Objects of other libraries in calls, in LLVM text: read and made by DLPack's C functions.

An input is read where it is: the library fills a DLTensor on the stack. A result is a managed
tensor over memory of ours, of which the library makes an object; the library calls `release` when
it drops the memory, from any thread, with or without Python's lock.
"""

from __future__ import annotations

from enum import IntEnum

from rlx.backends.cpu.runtime.binding_table import (
    NUM_OUTPUT_SLOTS,
    NUM_RESULT_SLOTS,
    NUM_WATCH_SLOTS,
    Exchange,
    HolderKind,
    InputSlot,
    OutputSlot,
    ResultSlot,
    Slot,
    ViewSlot,
    WatchSlot,
)
from rlx.backends.cpu.runtime.control_code import Function
from rlx.backends.cpu.runtime.cpython_layout import Field
from rlx.core.dlpack import CPU, VERSION
from rlx.core.exchange import MAX_ORDERED
from rlx.core.page_writes import SCAN_REQUEST, SCAN_WORDS


class Tensor(IntEnum):
    """Bytes from the start of a DLTensor."""

    DATA = 0
    DEVICE = 8
    RANK = 16
    CODE = 20
    DIMS = 24
    STRIDES = 32
    OFFSET = 40


class Managed(IntEnum):
    """Words of a DLManagedTensorVersioned, and behind it what `release` calls."""

    VERSION = 0
    HOLDER = 1
    DELETER = 2
    FLAGS = 3
    TENSOR = 4
    FREE = 10
    IS_INITIALIZED = 11
    ENSURE = 12
    RELEASE = 13
    DEC_REF = 14
    DIMS = 15
    """Then come dims, strides, and the strides of the output, each as many as there are axes."""


ALIGN = 64
"""Of the data of a small result, which follow the struct."""
_WORDS = Managed.DIMS


def exchange_text() -> str:
    """The functions that read objects of other libraries, and make them."""
    parts = [
        _is_dense(),
        _tensor_view(),
        _is_unchanged(),
        _digests_differ(),
        _new_managed(),
        _fill(),
    ]
    return "\n".join([*parts, _tensor_object(), _tensor_results(), _release()])


# -- inputs -------------------------------------------------------------------------------------


def _is_dense() -> str:
    """Are elements of these dims and strides in order, one beside the other?"""
    f = Function("define internal i1 @is_dense(ptr %dims, ptr %strides, i64 %rank)")
    f.give_if(f.test("eq", "ptr", "%strides", "null"), "i1 true")
    step, differs = f.slot(), f.slot()
    f.put("i64 1", step)
    f.put("i64 0", differs)
    with f.count("%rank") as i:
        axis = f.let(f"sub i64 {f.let('sub i64 %rank, 1')}, {i}")
        size, dense = f.word("%dims", axis), f.word(step)
        is_other = f.test("ne", "i64", f.word("%strides", axis), dense)
        counts = f.let(f"and i1 {is_other}, {f.test('ne', 'i64', size, 1)}")
        seen = f.let(f"or i64 {f.word(differs)}, {f.let(f'zext i1 {counts} to i64')}")
        f.put(f"i64 {seen}", differs)
        f.put(f"i64 {f.let(f'mul i64 {dense}, {size}')}", step)
    is_empty = f.test("eq", "i64", f.word(step), 0)
    is_same = f.test("eq", "i64", f.word(differs), 0)
    f.give(f"i1 {f.let(f'or i1 {is_empty}, {is_same}')}")
    return f.text()


def _tensor_view() -> str:
    """Note where an object begins and where its dims are, if it is as it should be."""
    f = Function(
        "define internal i1 @tensor_view(ptr %exchange, ptr %record, ptr %object, ptr %order, "
        "ptr %view)"
    )
    _require_plain(f)
    tensor = f.slot("[6 x i64]", 16)
    read = f.address("%exchange", Exchange.FROM_OBJECT)
    code = f.call("i32", read, "ptr %object", f"ptr {tensor}")
    with f.when(f.test("ne", "i32", code, 0)):
        f.call("void", f.address("%exchange", Exchange.CLEAR))
        f.give("i1 false")
    rank = f.word("%record", InputSlot.RANK)
    wanted = (Tensor.DEVICE, str(CPU)), (Tensor.RANK, f.let(f"trunc i64 {rank} to i32"))
    kind = f.let(f"trunc i64 {f.word('%record', InputSlot.CODE)} to i32")
    for at, value in (*wanted, (Tensor.CODE, kind)):
        f.give_if(f.test("ne", "i32", f.load("i32", tensor, at), value), "i1 false")
    dims, strides = _in_order(f, tensor, rank)
    dense = f.call("i1", "@is_dense", f"ptr {dims}", f"ptr {strides}", f"i64 {rank}")
    f.give_if(f.let(f"xor i1 {dense}, true"), "i1 false")
    given = f.load("ptr", tensor, Tensor.DATA)
    is_null = f.test("eq", "ptr", given, "null")
    with f.when(is_null):  # as it is where there are no elements; any address will do for those
        count = f.call("i64", "@bytes_of", f"ptr {dims}", f"i64 {rank}", "i64 1")
        f.give_if(f.test("ne", "i64", count, 0), "i1 false")
    begin = f.let(f"select i1 {is_null}, ptr %record, ptr {given}")
    data = f.at(begin, f.load("i64", tensor, Tensor.OFFSET))
    mask = f.let(f"sub i64 {f.least(f.word('%record', InputSlot.ITEM_BYTES), 8)}, 1")
    low = f.let(f"and i64 {f.let(f'ptrtoint ptr {data} to i64')}, {mask}")
    f.give_if(f.test("ne", "i64", low, 0), "i1 false")
    f.put(f"ptr {data}", "%view", ViewSlot.DATA)
    f.put(f"ptr {dims}", "%view", ViewSlot.DIMS)
    f.give("i1 true")
    return f.text()


def _in_order(f: Function, tensor: str, rank: str) -> tuple[str, str]:
    """The addresses of dims and strides of a DLTensor, with the axes in `%order` if it is one."""
    own, found = f.slot(f"[{MAX_ORDERED} x i64]", 16), (f.slot("ptr"), f.slot("ptr"))
    ordered = f.nth("%view", ViewSlot.ORDERED)
    given = [f.load("ptr", tensor, at) for at in (Tensor.DIMS, Tensor.STRIDES)]
    for at, pointer in zip(found, given):
        f.put(f"ptr {pointer}", at)
    with f.when(f.test("ne", "ptr", "%order", "null")):
        f.give_if(f.test("eq", "ptr", given[1], "null"), "i1 false")
        for at, source, target in zip(found, given, (ordered, own)):
            with f.count(rank) as i:
                f.put(f"i64 {f.word(source, f.word('%order', i))}", target, i)
            f.put(f"ptr {target}", at)
    return f.address(found[0]), f.address(found[1])


def _require_plain(f: Function) -> None:
    """Go on with an object of the classes alone, whose guarded word has no bits that are
    refused."""
    kind = f.load("ptr", "%object", Field.TYPE)
    known = [
        f.test("eq", "ptr", kind, f.address("%exchange", at))
        for at in (Exchange.TYPE, Exchange.OTHER_TYPE)
    ]
    either = f.let(f"or i1 {known[0]}, {known[1]}")
    f.give_if(f.let(f"xor i1 {either}, true"), "i1 false")
    at = f.word("%exchange", Exchange.POINTER)
    with f.when(f.test("ne", "i64", at, 0)):
        behind = f.load("ptr", "%object", at)
        bits = f.load("i64", behind, f.word("%exchange", Exchange.GUARDED))
        refused = f.let(f"and i64 {bits}, {f.word('%exchange', Exchange.REFUSED)}")
        f.give_if(f.test("ne", "i64", refused, 0), "i1 false")


def _is_unchanged() -> str:
    """Is every watched object what it was?"""
    f = Function("define internal i1 @is_unchanged(ptr %exchange, ptr %args)")
    records = f.address("%exchange", Exchange.WATCHED)
    pointer, storage, data, offset, counter, number = (
        f.word("%exchange", at)
        for at in (
            Exchange.POINTER, Exchange.STORAGE, Exchange.DATA, Exchange.OFFSET, Exchange.COUNTER,
            Exchange.NUMBER,
        )
    )  # fmt: skip
    with f.count(f.word("%exchange", Exchange.NUM_WATCHED)) as i:
        record = f.nth(records, f.let(f"mul i64 {i}, {NUM_WATCH_SLOTS}"))
        value, place = f.address(record, WatchSlot.OBJECT), f.word(record, WatchSlot.PLACE)
        with f.when(f.test("sge", "i64", place, 0)):
            f.give_if(f.test("ne", "ptr", f.address("%args", place), value), "i1 false")
        behind = f.load("ptr", value, pointer)
        held = f.load("ptr", behind, storage)
        known = f.address(record, WatchSlot.STORAGE)
        f.give_if(f.test("ne", "ptr", held, known), "i1 false")
        moved = f.test("ne", "i64", f.load("i64", held, data), f.word(record, WatchSlot.DATA))
        f.give_if(moved, "i1 false")
        shifted = f.load("i64", behind, offset)
        f.give_if(f.test("ne", "i64", shifted, f.word(record, WatchSlot.OFFSET)), "i1 false")
        counts = f.load("ptr", behind, counter)
        with f.when(f.test("ne", "ptr", counts, "null")):
            now = f.let(f"zext i32 {f.load('i32', counts, number)} to i64")
            f.give_if(f.test("ne", "i64", now, f.word(record, WatchSlot.NUMBER)), "i1 false")
    f.give("i1 true")
    return f.text()


def _digests_differ() -> str:
    """Is the memory, of which calls read copies, other than it was? 0 where it is not. A written
    page may be, and is for Python to read."""
    f = Function("define internal i32 @digests_differ(ptr %table, ptr %exchange)")
    ioctl, file = f.address("%exchange", Exchange.IOCTL), f.word("%exchange", Exchange.PAGEMAP)
    with f.count(f.word("%exchange", Exchange.NUM_SCANS)) as i:
        record = f.nth(f.address("%exchange", Exchange.SCANS), f.let(f"mul i64 {i}, {SCAN_WORDS}"))
        given = f"i32 {f.let(f'trunc i64 {file} to i32')}, i64 {SCAN_REQUEST}, ptr {record}"
        written = f.let(f"call i32 (i32, i64, ...) {ioctl}({given})")
        f.give_if(f.test("ne", "i32", written, 0), "i32 1")
    count = f.word("%exchange", Exchange.NUM_BLOCKS)
    f.give_if(f.test("eq", "i64", count, 0), "i32 0")
    pool, blocks = f.address("%table", Slot.POOL), f.address("%exchange", Exchange.BLOCKS)
    given = f"ptr {pool}", f"ptr {blocks}", f"i64 {count}", f"i64 {f.word('%table', Slot.THREADS)}"
    f.give(f"i32 {f.call('i32', '@check_digests', *given)}")
    return f.text()


# -- results ------------------------------------------------------------------------------------


def _new_managed() -> str:
    """Memory for a managed tensor and so many bytes behind it, or null."""
    f = Function("define internal ptr @new_managed(ptr %exchange, ptr %record, i64 %bytes)")
    rank = f.word("%record", OutputSlot.RANK)
    words = f.add(f.let(f"mul i64 {rank}, 3"), _WORDS)
    size = f.add(f.add(f.let(f"shl i64 {words}, 3"), ALIGN), "%bytes")
    made = f.call("ptr", f.address("%exchange", Exchange.MALLOC), f"i64 {size}")
    f.give(f"ptr {made}")
    return f.text()


def small_data(f: Function, managed: str, record: str) -> str:
    """The address of the data that follow a managed tensor."""
    words = f.add(f.let(f"mul i64 {f.word(record, OutputSlot.RANK)}, 3"), _WORDS)
    end = f.let(f"ptrtoint ptr {f.nth(managed, words)} to i64")
    raised = f.let(f"and i64 {f.add(end, ALIGN - 1)}, {-ALIGN}")
    return f.let(f"inttoptr i64 {raised} to ptr")


def _fill() -> str:
    """Describe an output, with its axes in an order, or as they are where that is null."""
    f = Function(
        "define internal void @fill(ptr %table, ptr %exchange, ptr %record, ptr %dims, ptr %order, "
        "ptr %managed, ptr %data)"
    )
    rank = f.word("%record", OutputSlot.RANK)
    shape = f.nth("%managed", Managed.DIMS)
    strides = f.nth(shape, rank)
    dense = f.nth(strides, rank)
    step = f.slot()
    f.put("i64 1", step)
    with f.count(rank) as i:
        axis = f.let(f"sub i64 {f.let(f'sub i64 {rank}, 1')}, {i}")
        f.put(f"i64 {f.word(step)}", dense, axis)
        size = f.word("%dims", axis)
        size = f.let(f"select i1 {f.test('eq', 'i64', size, 0)}, i64 1, i64 {size}")
        f.put(f"i64 {f.let(f'mul i64 {f.word(step)}, {size}')}", step)
    with f.count(rank) as i:
        axis = f.slot()
        f.put(f"i64 {i}", axis)
        with f.when(f.test("ne", "ptr", "%order", "null")):
            f.put(f"i64 {f.word('%order', i)}", axis)
        f.put(f"i64 {f.word('%dims', f.word(axis))}", shape, i)
        f.put(f"i64 {f.word(dense, f.word(axis))}", strides, i)
    _fill_words(f, rank, shape, strides)
    f.give()
    return f.text()


def _fill_words(f: Function, rank: str, shape: str, strides: str) -> None:
    kind = f.let(f"shl i64 {f.word('%record', OutputSlot.CODE)}, 32")
    words = {
        Managed.VERSION: f"i64 {VERSION[0] | VERSION[1] << 32}",
        Managed.DELETER: f"ptr {f.address('%exchange', Exchange.DELETER)}",
        Managed.FLAGS: "i64 0",
        Managed.TENSOR: "ptr %data",
        Managed.TENSOR + 1: f"i64 {CPU}",
        Managed.TENSOR + 2: f"i64 {f.let(f'or i64 {kind}, {rank}')}",
        Managed.TENSOR + 3: f"ptr {shape}",
        Managed.TENSOR + 4: f"ptr {strides}",
        Managed.TENSOR + 5: "i64 0",
        Managed.DEC_REF: f"ptr {f.address('%table', Slot.DEC_REF)}",
    }
    for at, typed in words.items():
        f.put(typed, "%managed", at)
    for name in ("FREE", "IS_INITIALIZED", "ENSURE", "RELEASE"):
        f.put(f"ptr {f.address('%exchange', Exchange[name])}", "%managed", Managed[name])


def _tensor_object() -> str:
    """The object of an output; null with an exception set. From then on the holder has it."""
    f = Function(
        "define internal ptr @tensor_object(ptr %table, ptr %exchange, ptr %record, ptr %dims, "
        "ptr %order, ptr %holder, ptr %data)"
    )
    managed, base, made = f.slot("ptr"), f.slot("ptr"), f.slot("ptr")
    held = f.address("%holder")
    is_small = f.test("eq", "i64", f.word("%holder", 1), int(HolderKind.MANAGED))
    f.put(f"ptr {held}", managed)
    f.put("ptr null", base)
    with f.when(f.let(f"xor i1 {is_small}, true")):
        new = f.call("ptr", "@new_managed", "ptr %exchange", "ptr %record", "i64 0")
        with f.when(f.test("eq", "ptr", new, "null")):
            f.give(f"ptr {f.call('ptr', f.address('%exchange', Exchange.NO_MEMORY))}")
        f.put(f"ptr {new}", managed)
        f.put(f"ptr {held}", base)
    struct = f.address(managed)
    f.put(f"ptr {f.address(base)}", struct, Managed.HOLDER)
    common = "ptr %table", "ptr %exchange", "ptr %record", "ptr %dims", "ptr %order"
    f.call("void", "@fill", *common, f"ptr {struct}", "ptr %data")
    f.put("ptr null", "%holder", 0)
    f.put(f"i64 {int(HolderKind.OBJECT)}", "%holder", 1)
    give = f.address("%exchange", Exchange.TO_OBJECT)
    code = f.call("i32", give, f"ptr {struct}", f"ptr {made}")
    f.give_if(f.test("ne", "i32", code, 0), "ptr null")
    f.put(f"ptr {f.address(made)}", "%holder", 0)
    f.give(f"ptr {f.address(made)}")
    return f.text()


def _tensor_results() -> str:
    """What the call returns: an object, or a tuple of them; null with an exception set."""
    f = Function(
        "define internal ptr @tensor_results(ptr %table, ptr %exchange, ptr %needs, ptr %holders, "
        "ptr %places)"
    )
    count, outputs = f.word("%exchange", Exchange.NUM_RESULTS), f.address("%table", Slot.OUTPUTS)
    records, undo = f.address("%exchange", Exchange.RESULTS), ("ptr %table", "ptr %exchange")
    with f.count(count) as i:
        result = f.nth(records, f.let(f"mul i64 {i}, {NUM_RESULT_SLOTS}"))
        output = f.word(result, ResultSlot.OUTPUT)
        record = f.nth(outputs, f.let(f"mul i64 {output}, {NUM_OUTPUT_SLOTS}"))
        given = (
            "ptr %table", "ptr %exchange", f"ptr {record}",
            f"ptr {f.nth('%needs', f.word(result, ResultSlot.DIMS))}",
            f"ptr {f.address(result, ResultSlot.ORDER)}",
            f"ptr {f.nth('%holders', f.let(f'shl i64 {output}, 1'))}",
            f"ptr {f.address('%places', output)}",
        )  # fmt: skip
        made = f.call("ptr", "@tensor_object", *given)
        with f.when(f.test("eq", "ptr", made, "null")):
            f.call("void", "@undo", *undo, "ptr %holders")
            f.give("ptr null")
    is_one = f.test("eq", "i64", f.word("%exchange", Exchange.IS_TUPLE), 0)
    f.give_if(is_one, f"ptr {f.address('%holders')}")
    made = f.call("ptr", f.address("%table", Slot.NEW_TUPLE), f"i64 {count}")
    with f.when(f.test("eq", "ptr", made, "null")):
        f.call("void", "@undo", *undo, "ptr %holders")
        f.give("ptr null")
    with f.count(count) as i:
        result = f.nth(records, f.let(f"mul i64 {i}, {NUM_RESULT_SLOTS}"))
        output = f.word(result, ResultSlot.OUTPUT)
        item = f.address("%holders", f.let(f"shl i64 {output}, 1"))
        given = f"ptr {made}", f"i64 {i}", f"ptr {item}"
        f.call("i32", f.address("%table", Slot.SET_ITEM), *given)
    f.give(f"ptr {made}")
    return f.text()


def _release() -> str:
    """What a library calls when it drops the memory of a result. A block is let go of under
    Python's lock; after the interpreter's end there is nobody to tell."""
    f = Function("define void @release(ptr %managed)")
    base = f.address("%managed", Managed.HOLDER)
    with f.when(f.test("ne", "ptr", base, "null")):
        lives = f.call("i32", f.address("%managed", Managed.IS_INITIALIZED))
        with f.when(f.test("ne", "i32", lives, 0)):
            state = f.call("i32", f.address("%managed", Managed.ENSURE))
            f.call("void", f.address("%managed", Managed.DEC_REF), f"ptr {base}")
            f.call("void", f.address("%managed", Managed.RELEASE), f"i32 {state}")
    f.call("void", f.address("%managed", Managed.FREE), "ptr %managed")
    f.give()
    return f.text()
