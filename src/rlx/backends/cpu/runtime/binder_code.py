"""The way in from Python, in LLVM text: a function that Python calls as one of its own.

It looks at the arrays as they lie in memory, binds the sizes of named dims, takes an arena and
outputs from blocks that are free, lets go of Python's lock, and runs the model. Whatever is not
as it should be it leaves to `slow`, the same in Python, which says what is wrong. So nothing here
makes errors of its own.
"""

from __future__ import annotations

from rlx.backends.cpu.program.call_context import NUM_WORDS, Mode, Word
from rlx.backends.cpu.runtime.argument_checks import checks_text, note_edges
from rlx.backends.cpu.runtime.binding_table import (
    KEPT,
    NUM_BLOCK_SLOTS,
    NUM_OUTPUT_SLOTS,
    NUM_VIEW_SLOTS,
    BlockSlot,
    Exchange,
    HolderKind,
    InputSlot,
    OutputSlot,
    Slot,
    ViewSlot,
)
from rlx.backends.cpu.runtime.buffer_pool import SLACK
from rlx.backends.cpu.runtime.control_code import Function, Value
from rlx.backends.cpu.runtime.cpython_layout import ALIGNED, CONTIGUOUS, WRITEABLE, Field
from rlx.backends.cpu.runtime.digest_code import digest_text
from rlx.backends.cpu.runtime.exchange_code import exchange_text, small_data
from rlx.backends.cpu.runtime.interrupt_poll import INTERRUPTED
from rlx.backends.cpu.runtime.thread_pool_layout import Place
from rlx.backends.cpu.runtime.written_code import written_text

BOUND_EXCHANGE, BOUND_FAILED = 6, 7
"""The words of a bound callable that have the address of an exchange, and a function of what
failed."""
SMALL = 4096
"""Outputs below so many bytes are memory of NumPy's: it recycles those itself."""


def binder_text() -> str:
    """`entry`, and what it calls."""
    parts = [
        digest_text(),
        exchange_text(),
        checks_text(),
        written_text(),
        _evaluate(),
        _block(),
        _new_array(),
    ]
    parts += [_output(), _outputs(), _undo(), _wrap(), _results()]
    return "\n".join([*parts, _run(), _attempt(), _entry()])


# -- sizes --------------------------------------------------------------------------------------


def _evaluate() -> str:
    """Have the needs for these sizes ready in the cache; false if the model refuses them."""
    f = Function("define internal i1 @evaluate(ptr %table, ptr %context, ptr %symbols)")
    cached, count = f.address("%table", Slot.CACHED_SYMBOLS), f.word("%table", Slot.NUM_SYMBOLS)
    differs = f.slot()
    is_cached = f.word("%table", Slot.IS_CACHED)
    f.put(f"i64 {f.let(f'xor i64 {is_cached}, 1')}", differs)
    with f.count(count) as i:
        change = f.let(f"xor i64 {f.word(cached, i)}, {f.word('%symbols', i)}")
        f.put(f"i64 {f.let(f'or i64 {f.word(differs)}, {change}')}", differs)
    f.give_if(f.test("eq", "i64", f.word(differs), 0), "i1 true")
    f.put("i64 0", "%table", Slot.IS_CACHED)
    needs = f.address("%table", Slot.CACHED_NEEDS)
    f.put(f"i64 {int(Mode.NEED)}", "%context", Word.MODE)
    f.put(f"ptr {needs}", "%context", Word.NEEDS)
    code = f.call("i32", f.address("%table", Slot.RUN), "ptr %context")
    f.give_if(f.test("ne", "i32", code, 0), "i1 false")
    last = f.let(f"sub i64 {f.word('%table', Slot.NUM_NEEDS)}, 1")
    f.give_if(f.test("ne", "i64", f.word(needs, last), 0), "i1 false")
    _copy(f, "%symbols", cached, count)
    f.put("i64 1", "%table", Slot.IS_CACHED)
    f.give("i1 true")
    return f.text()


def _copy(f: Function, source: str, target: str, count: Value) -> None:
    with f.count(count) as i:
        f.put(f"i64 {f.word(source, i)}", target, i)


# -- what is made -------------------------------------------------------------------------------


def _block() -> str:
    """The record of a kept block that nobody holds, of a size between two; or null."""
    f = Function("define internal ptr @block(ptr %blocks, i64 %least, i64 %most)")
    with f.count(KEPT) as i, f.forever() as (_, skip):
        block = f.nth("%blocks", f.let(f"mul i64 {i}, {NUM_BLOCK_SLOTS}"))
        base, size = f.address(block, BlockSlot.OBJECT), f.word(block, BlockSlot.BYTES)
        f.jump_if(f.test("eq", "ptr", base, "null"), skip)
        f.jump_if(f.test("ult", "i64", size, "%least"), skip)
        f.jump_if(f.test("ugt", "i64", size, "%most"), skip)
        f.jump_if(f.test("ne", "i32", f.load("i32", base, Field.COUNT), 1), skip)
        f.give(f"ptr {block}")
    f.give("ptr null")
    return f.text()


def _new_array() -> str:
    """An array over data, or, where that is null, over memory of NumPy's."""
    f = Function("define internal ptr @new_array(ptr %table, ptr %record, ptr %dims, ptr %data)")
    descr = f.address("%record", OutputSlot.DESCR)
    f.call("void", f.address("%table", Slot.INC_REF), f"ptr {descr}")
    rank = f.let(f"trunc i64 {f.word('%record', OutputSlot.RANK)} to i32")
    is_own = f.test("eq", "ptr", "%data", "null")
    flags = f.let(f"select i1 {is_own}, i32 0, i32 {CONTIGUOUS | ALIGNED | WRITEABLE}")
    kind = f"ptr {f.address('%table', Slot.ARRAY_TYPE)}"
    given = kind, f"ptr {descr}", f"i32 {rank}", "ptr %dims", "ptr null", "ptr %data"
    made = f.call("ptr", f.address("%table", Slot.NEW_ARRAY), *given, f"i32 {flags}", "ptr null")
    f.give(f"ptr {made}")
    return f.text()


# how an attempt ends: done, left to `slow`, with an exception that is set, or with a failure of
# the model, whose number is stored
_DONE, _SLOW, _RAISED, _FAILED = 0, 1, 2, 3


def _output() -> str:
    """Memory for an output that is not given: a holder of it, and its address."""
    f = Function(
        "define internal i32 @output(ptr %table, ptr %exchange, ptr %record, ptr %need, "
        "ptr %holder, ptr %place)"
    )
    size = f.word("%need")
    is_own = f.let(f"xor i1 {f.test('ult', 'i64', size, SMALL)}, true")
    measured = f.test("ne", "i64", f.word("%record", OutputSlot.IS_MEASURED), 0)
    with f.when(f.let(f"or i1 {is_own}, {measured}")):
        most = f.add(f.let(f"shl i64 {size}, 1"), SLACK)
        blocks = f.nth("%record", OutputSlot.BLOCKS)
        block = f.call("ptr", "@block", f"ptr {blocks}", f"i64 {size}", f"i64 {most}")
        f.give_if(f.test("eq", "ptr", block, "null"), f"i32 {_SLOW}")
        base = f.address(block, BlockSlot.OBJECT)
        f.call("void", f.address("%table", Slot.INC_REF), f"ptr {base}")
        f.put(f"ptr {base}", "%holder", 0)
        f.put(f"i64 {int(HolderKind.BLOCK)}", "%holder", 1)
        f.put(f"ptr {f.address(block, BlockSlot.DATA)}", "%place")
        f.give(f"i32 {_DONE}")
    with f.when(f.test("ne", "ptr", "%exchange", "null")):
        _small_output(f, size)
    given = "ptr %table", "ptr %record", f"ptr {f.nth('%need', 1)}", "ptr null"
    made = f.call("ptr", "@new_array", *given)
    f.give_if(f.test("eq", "ptr", made, "null"), f"i32 {_RAISED}")
    f.put(f"ptr {made}", "%holder", 0)
    f.put(f"i64 {int(HolderKind.OBJECT)}", "%holder", 1)
    f.put(f"ptr {f.load('ptr', made, Field.DATA)}", "%place")
    f.give(f"i32 {_DONE}")
    return f.text()


def _small_output(f: Function, size: str) -> None:
    """An output behind the managed tensor that describes it."""
    given = "ptr %exchange", "ptr %record", f"i64 {size}"
    made = f.call("ptr", "@new_managed", *given)
    f.give_if(f.test("eq", "ptr", made, "null"), f"i32 {_SLOW}")
    f.put(f"ptr {made}", "%holder", 0)
    f.put(f"i64 {int(HolderKind.MANAGED)}", "%holder", 1)
    f.put(f"ptr {small_data(f, made, '%record')}", "%place")
    f.give(f"i32 {_DONE}")


def _given_output() -> str:
    """An output that is given: as it should be, and apart from all arrays so far?"""
    f = Function(
        "define internal i32 @given_output(ptr %table, ptr %record, ptr %need, ptr %holder, "
        "ptr %place, ptr %array, ptr %edges, i64 %count)"
    )
    measured = f.test("ne", "i64", f.word("%record", OutputSlot.IS_MEASURED), 0)
    f.give_if(measured, f"i32 {_SLOW}")
    flags = CONTIGUOUS | ALIGNED | WRITEABLE
    given = "ptr %table", "ptr %record", "ptr %array", f"i32 {flags}"
    f.give_if(f.let(f"xor i1 {f.call('i1', '@array_fits', *given)}, true"), f"i32 {_SLOW}")
    data, dims = (f.load("ptr", "%array", at) for at in (Field.DATA, Field.DIMS))
    rank, wanted = f.word("%record", OutputSlot.RANK), f.nth("%need", 1)
    same = f.call("i1", "@same_dims", f"ptr {dims}", f"i64 {rank}", f"ptr {wanted}")
    f.give_if(f.let(f"xor i1 {same}, true"), f"i32 {_SLOW}")
    pair = f.nth("%edges", f.let("shl i64 %count, 1"))
    note_edges(f, pair, (data, dims), "%record")
    edges = f"i64 {f.word(pair, 0)}", f"i64 {f.word(pair, 1)}"
    apart = f.call("i1", "@apart", "ptr %edges", "i64 %count", *edges)
    f.give_if(f.let(f"xor i1 {apart}, true"), f"i32 {_SLOW}")
    f.call("void", f.address("%table", Slot.INC_REF), "ptr %array")
    f.put("ptr %array", "%holder", 0)
    f.put(f"i64 {int(HolderKind.OBJECT)}", "%holder", 1)
    f.put(f"ptr {data}", "%place")
    f.give(f"i32 {_DONE}")
    return f.text()


def _outputs() -> str:
    """Memory for all outputs. `%given` points to the arrays given for them, or is null."""
    f = Function(
        "define internal i32 @outputs(ptr %table, ptr %exchange, ptr %needs, ptr %holders, "
        "ptr %places, ptr %given, ptr %edges)"
    )
    at, outputs = f.slot("ptr"), f.address("%table", Slot.OUTPUTS)
    f.do(f"store ptr {f.nth('%needs', 2)}, ptr {at}")
    with f.count(f.word("%table", Slot.NUM_OUTPUTS)) as i:
        record = f.nth(outputs, f.let(f"mul i64 {i}, {NUM_OUTPUT_SLOTS}"))
        need, code = f.load("ptr", at), f.slot("i32")
        holder, place = f.nth("%holders", f.let(f"shl i64 {i}, 1")), f.nth("%places", i)
        common = f"ptr {record}", f"ptr {need}", f"ptr {holder}", f"ptr {place}"
        is_given = f.test("ne", "ptr", "%given", "null")
        with f.when(is_given):
            count = f.add(f.word("%table", Slot.NUM_INPUTS), i)
            more = f"ptr {f.address('%given', i)}", "ptr %edges", f"i64 {count}"
            made = f.call("i32", "@given_output", "ptr %table", *common, *more)
            f.do(f"store i32 {made}, ptr {code}")
        with f.when(f.let(f"xor i1 {is_given}, true")):
            own = "ptr %table", "ptr %exchange", *common
            f.do(f"store i32 {f.call('i32', '@output', *own)}, ptr {code}")
        failed = f.load("i32", code)
        f.give_if(f.test("ne", "i32", failed, _DONE), f"i32 {failed}")
        step = f.add(f.word(record, OutputSlot.RANK), 1)
        f.do(f"store ptr {f.nth(need, step)}, ptr {at}")
    f.give(f"i32 {_DONE}")
    return _given_output() + f.text()


def _undo() -> str:
    """Let go of what outputs hold so far."""
    f = Function("define internal void @undo(ptr %table, ptr %exchange, ptr %holders)")
    with f.count(f.word("%table", Slot.NUM_OUTPUTS)) as i, f.forever() as (_, skip):
        holder = f.nth("%holders", f.let(f"shl i64 {i}, 1"))
        held, kind = f.address(holder), f.word(holder, 1)
        f.jump_if(f.test("eq", "ptr", held, "null"), skip)
        with f.when(f.test("eq", "i64", kind, int(HolderKind.MANAGED))):
            f.call("void", f.address("%exchange", Exchange.FREE), f"ptr {held}")
        with f.when(f.test("ne", "i64", kind, int(HolderKind.MANAGED))):
            f.call("void", f.address("%table", Slot.DEC_REF), f"ptr {held}")
        f.jump_if("true", skip)
    f.give()
    return f.text()


def _wrap() -> str:
    """Replace a holder that is a block by the array over it."""
    f = Function(
        "define internal i1 @wrap(ptr %table, ptr %record, ptr %need, ptr %holder, ptr %place)"
    )
    is_made = f.test("eq", "i64", f.word("%holder", 1), int(HolderKind.OBJECT))
    f.give_if(is_made, "i1 true")
    dims, data = f.nth("%need", 1), f.address("%place")
    given = "ptr %table", "ptr %record", f"ptr {dims}", f"ptr {data}"
    made = f.call("ptr", "@new_array", *given)
    f.give_if(f.test("eq", "ptr", made, "null"), "i1 false")
    base = f.address("%holder")
    f.put(f"ptr {made}", "%holder", 0)
    f.put(f"i64 {int(HolderKind.OBJECT)}", "%holder", 1)
    code = f.call("i32", f.address("%table", Slot.SET_BASE), f"ptr {made}", f"ptr {base}")
    f.give(f"i1 {f.test('eq', 'i32', code, 0)}")
    return f.text()


def _results() -> str:
    """What the call returns: the array, or a tuple of them; null with an exception set."""
    f = Function("define internal ptr @results(ptr %table, ptr %needs, ptr %holders, ptr %places)")
    at, outputs = f.slot("ptr"), f.address("%table", Slot.OUTPUTS)
    f.do(f"store ptr {f.nth('%needs', 2)}, ptr {at}")
    count = f.word("%table", Slot.NUM_OUTPUTS)
    undo = "ptr %table", "ptr null", "ptr %holders"
    with f.count(count) as i:
        record, need = f.nth(outputs, f.let(f"mul i64 {i}, {NUM_OUTPUT_SLOTS}")), f.load("ptr", at)
        holder, place = f.nth("%holders", f.let(f"shl i64 {i}, 1")), f.nth("%places", i)
        common = "ptr %table", f"ptr {record}", f"ptr {need}", f"ptr {holder}", f"ptr {place}"
        made = f.call("i1", "@wrap", *common)
        with f.when(f.let(f"xor i1 {made}, true")):
            f.call("void", "@undo", *undo)
            f.give("ptr null")
        step = f.add(f.word(record, OutputSlot.RANK), 1)
        f.do(f"store ptr {f.nth(need, step)}, ptr {at}")
    f.give_if(f.test("eq", "i64", count, 1), f"ptr {f.address('%holders')}")
    made = f.call("ptr", f.address("%table", Slot.NEW_TUPLE), f"i64 {count}")
    with f.when(f.test("eq", "ptr", made, "null")):
        f.call("void", "@undo", *undo)
        f.give("ptr null")
    with f.count(count) as i:
        item = f.address("%holders", f.let(f"shl i64 {i}, 1"))
        given = f"ptr {made}", f"i64 {i}", f"ptr {item}"
        f.call("i32", f.address("%table", Slot.SET_ITEM), *given)
    f.give(f"ptr {made}")
    return f.text()


# -- the call -----------------------------------------------------------------------------------


def _run() -> str:
    """Run the model without Python's lock, holding its arena and weights."""
    f = Function("define internal i32 @run_model(ptr %table, ptr %context, ptr %weights)")
    needs = f.address("%context", Word.NEEDS)
    size, arena = f.word(needs), f.slot("ptr")
    f.do(f"store ptr null, ptr {arena}")
    f.put("ptr null", "%context", Word.ARENA)
    inc, dec = (f.address("%table", s) for s in (Slot.INC_REF, Slot.DEC_REF))
    with f.when(f.test("ne", "i64", size, 0)):
        blocks = f.address("%table", Slot.ARENAS)
        block = f.call("ptr", "@block", f"ptr {blocks}", f"i64 {size}", "i64 -1")
        f.give_if(f.test("eq", "ptr", block, "null"), f"i32 {_SLOW}")
        base = f.address(block, BlockSlot.OBJECT)
        f.call("void", inc, f"ptr {base}")
        f.do(f"store ptr {base}, ptr {arena}")
        f.put(f"ptr {f.address(block, BlockSlot.DATA)}", "%context", Word.ARENA)
    f.call("void", inc, "ptr %weights")
    f.put(f"i64 {int(Mode.CALL)}", "%context", Word.MODE)
    state = f.call("ptr", f.address("%table", Slot.SAVE_THREAD))
    pool, run = (f.address("%table", s) for s in (Slot.POOL, Slot.RUN))
    given = f"ptr {pool}", "ptr %context", f"ptr {run}"
    code = f.call("i32", f.address("%table", Slot.CALL), *given)
    f.call("void", f.address("%table", Slot.RESTORE_THREAD), f"ptr {state}")
    f.call("void", dec, "ptr %weights")
    held = f.load("ptr", arena)
    with f.when(f.test("ne", "ptr", held, "null")):
        f.call("void", dec, f"ptr {held}")
    f.give_if(f.test("eq", "i32", code, INTERRUPTED), f"i32 {_RAISED}")
    f.give_if(f.test("eq", "i32", code, 0), f"i32 {_DONE}")
    number = f.word("%context", Word.FAILED)
    with f.when(f.test("eq", "i64", f.let(f"and i64 {number}, {0xFFFFFFFF}"), 0)):
        wide = f.let(f"zext i32 {code} to i64")
        f.put(f"i64 {f.let(f'or i64 {number}, {wide}')}", "%context", Word.FAILED)
    is_final = f.test("ne", "i64", f.word("%table", Slot.RUNS_ONCE), 0)
    f.give(f"i32 {f.let(f'select i1 {is_final}, i32 {_FAILED}, i32 {_SLOW}')}")
    return f.text()


def _attempt() -> str:
    """The whole call; gives how it ended, and where it is done stores the result."""
    f = Function(
        "define internal i32 @attempt(ptr %table, ptr %exchange, ptr %args, i64 %count, "
        "ptr %result)"
    )
    slow = f"i32 {_SLOW}"
    inputs, outputs = (f.word("%table", s) for s in (Slot.NUM_INPUTS, Slot.NUM_OUTPUTS))
    has_outs = _counted(f, inputs, outputs)
    asked = f.word(f.address("%table", Slot.POOL), Place.ASKED)
    f.give_if(f.test("slt", "i64", asked, f.word("%table", Slot.THREADS)), slow)
    weights = f.address("%table", Slot.WEIGHTS)
    f.give_if(f.test("eq", "ptr", weights, "null"), slow)
    context, symbols, places = _context(f, inputs, outputs, weights)
    views = _words(f, f.let(f"mul i64 {f.add(inputs, 1)}, {NUM_VIEW_SLOTS}"))
    common = "ptr %table", "ptr %exchange", "ptr %args", f"ptr {views}"
    fits = f.call("i1", "@inputs_fit", *common, f"ptr {symbols}", f"ptr {places}")
    f.give_if(f.let(f"xor i1 {fits}, true"), slow)
    good = f.call("i1", "@evaluate", "ptr %table", f"ptr {context}", f"ptr {symbols}")
    f.give_if(f.let(f"xor i1 {good}, true"), slow)
    needs = _own_needs(f, context)
    fits = f.call("i1", "@dims_fit", "ptr %table", f"ptr {views}", f"ptr {needs}")
    f.give_if(f.let(f"xor i1 {fits}, true"), slow)
    with f.when(f.test("ne", "ptr", "%exchange", "null")):
        fits = f.call("i1", "@begin_writes", *common)
        f.give_if(f.let(f"xor i1 {fits}, true"), slow)
    given = _given(f, has_outs, (inputs, outputs), views)
    _finish(f, (context, needs, places, weights), given, outputs)
    return f.text()


def _counted(f: Function, inputs: str, outputs: str) -> str:
    """Go on with as many arguments as there should be, the watched ones unchanged; are arrays for
    outputs among them?"""
    slow, has_outs = f"i32 {_SLOW}", f.slot("i1")
    f.do(f"store i1 false, ptr {has_outs}")
    with f.when(f.test("ne", "ptr", "%exchange", "null")):
        wanted = f.word("%exchange", Exchange.NUM_ARGUMENTS)
        f.give_if(f.test("ne", "i64", "%count", wanted), slow)
        same = f.call("i1", "@is_unchanged", "ptr %exchange", "ptr %args")
        f.give_if(f.let(f"xor i1 {same}, true"), slow)
        differs = f.call("i32", "@digests_differ", "ptr %table", "ptr %exchange")
        f.give_if(f.test("eq", "i32", differs, INTERRUPTED), f"i32 {_RAISED}")
        f.give_if(f.test("ne", "i32", differs, 0), slow)
    with f.when(f.test("eq", "ptr", "%exchange", "null")):
        is_more = f.test("eq", "i64", "%count", f.add(inputs, outputs))
        f.do(f"store i1 {is_more}, ptr {has_outs}")
        known = f.let(f"or i1 {is_more}, {f.test('eq', 'i64', '%count', inputs)}")
        f.give_if(f.let(f"xor i1 {known}, true"), slow)
    return f.load("i1", has_outs)


def _words(f: Function, count: Value) -> str:
    return f.let(f"alloca i64, i64 {count}, align 16")


def _context(f: Function, inputs: str, outputs: str, weights: str) -> tuple[str, str, str]:
    """The words of the call: its context, the sizes, and the addresses of arrays."""
    params, count = (f.word("%table", s) for s in (Slot.NUM_PARAMS, Slot.NUM_SYMBOLS))
    context, symbols = f.slot(f"[{NUM_WORDS} x i64]", 16), _words(f, f.add(count, 1))
    places = _words(f, f.add(f.add(inputs, params), f.add(outputs, 1)))
    held = f.load("ptr", weights, Field.DATA)
    _copy(f, f.nth(held, 1), f.nth(places, inputs), params)
    _copy(f, f.nth(held, f.add(params, 1)), symbols, count)
    f.put(f"ptr {symbols}", context, Word.SYMBOLS)
    f.put(f"ptr {f.address(held)}", context, Word.WEIGHTS)
    f.put(f"ptr {places}", context, Word.EXTERNALS)
    f.put(f"i64 {f.word('%table', Slot.THREADS)}", context, Word.THREADS)
    f.put("i64 0", context, Word.FAILED)
    f.put("ptr null", context, Word.HOST)
    f.put("ptr null", context, Word.POOL)
    return context, symbols, places


def _own_needs(f: Function, context: str) -> str:
    """A copy of the needs: the call writes dims into them."""
    count = f.word("%table", Slot.NUM_NEEDS)
    needs = _words(f, count)
    _copy(f, f.address("%table", Slot.CACHED_NEEDS), needs, count)
    f.put(f"ptr {needs}", context, Word.NEEDS)
    return needs


def _given(f: Function, has_outs: str, counts: tuple[str, str], views: str) -> tuple[str, str]:
    """The arrays given for outputs, or null; and where the arrays that are given begin and end."""
    inputs, outputs = counts
    edges = _words(f, f.let(f"shl i64 {f.add(f.add(inputs, outputs), 1)}, 1"))
    at = f.slot("ptr")
    has_outs = f.let(f"and i1 {has_outs}, {f.test('ne', 'i64', outputs, 0)}")
    with f.when(has_outs):
        f.do(f"store ptr {f.address('%table', Slot.INPUTS)}, ptr {at}")
        with f.count(inputs) as i:
            view, record = f.nth(views, f.let(f"mul i64 {i}, {NUM_VIEW_SLOTS}")), f.load("ptr", at)
            pair = f.nth(edges, f.let(f"shl i64 {i}, 1"))
            array = f.address(view, ViewSlot.DATA), f.address(view, ViewSlot.DIMS)
            note_edges(f, pair, array, record)
            step = f.add(f.word(record, InputSlot.RANK), InputSlot.DIMS)
            f.do(f"store ptr {f.nth(record, step)}, ptr {at}")
    given = f.let(f"select i1 {has_outs}, ptr {f.nth('%args', inputs)}, ptr null")
    return given, edges


def _finish(
    f: Function, call: tuple[str, str, str, str], given: tuple[str, str], outputs: str
) -> None:
    """Make the outputs, run, and return."""
    context, needs, places, weights = call
    holders = _words(f, f.let(f"shl i64 {f.add(outputs, 1)}, 1"))
    with f.count(f.let(f"shl i64 {outputs}, 1")) as i:
        f.put("i64 0", holders, i)
    first = f.add(f.word("%table", Slot.NUM_INPUTS), f.word("%table", Slot.NUM_PARAMS))
    spots = f.nth(places, first)
    common = f"ptr {needs}", f"ptr {holders}", f"ptr {spots}"
    more = *common, f"ptr {given[0]}", f"ptr {given[1]}"
    code = f.call("i32", "@outputs", "ptr %table", "ptr %exchange", *more)
    ended = f.slot("i32")
    f.do(f"store i32 {code}, ptr {ended}")
    with f.when(f.test("eq", "i32", code, _DONE)):
        ran = f.call("i32", "@run_model", "ptr %table", f"ptr {context}", f"ptr {weights}")
        f.do(f"store i32 {ran}, ptr {ended}")
    left = f.load("i32", ended)
    with f.when(f.test("ne", "i32", left, _DONE)):
        f.call("void", "@undo", "ptr %table", "ptr %exchange", f"ptr {holders}")
        with f.when(f.test("eq", "i32", left, _FAILED)):
            f.put(f"i64 {f.word(context, Word.FAILED)}", "%result")
        f.give(f"i32 {left}")
    with f.when(f.test("ne", "ptr", "%exchange", "null")):
        made = f.call("ptr", "@tensor_results", "ptr %table", "ptr %exchange", *common)
        f.put(f"ptr {made}", "%result")
        f.give(f"i32 {_DONE}")
    f.put(f"ptr {f.call('ptr', '@results', 'ptr %table', *common)}", "%result")
    f.give(f"i32 {_DONE}")


def _entry() -> str:
    """What Python calls. The data of `self` are the addresses of a table and of `slow`, four words
    of Python's own, the address of the words of an exchange, or null, and that of a function of a
    failure's number."""
    f = Function("define ptr @entry(ptr %self, ptr %args, i64 %count)")
    bound, result = f.load("ptr", "%self", Field.DATA), f.slot("ptr")
    f.do(f"store ptr null, ptr {result}")
    table = f.address(bound)
    exchange = f.address(bound, BOUND_EXCHANGE)
    given = f"ptr {table}", f"ptr {exchange}", "ptr %args", "i64 %count", f"ptr {result}"
    code = f.call("i32", "@attempt", *given)
    with f.when(f.test("eq", "i32", code, _SLOW)):
        call, slow = f.address(table, Slot.CALL_OBJECT), f.address(bound, 1)
        given = f"ptr {slow}", "ptr %args", "i64 %count", "ptr null"
        f.give(f"ptr {f.call('ptr', call, *given)}")
    with f.when(f.test("eq", "i32", code, _FAILED)):
        _give_failure(f, table, f.address(bound, BOUND_FAILED), result)
    f.give(f"ptr {f.load('ptr', result)}")
    return f.text()


def _give_failure(f: Function, table: str, failed: str, result: str) -> None:
    """What the function of a failure gives for its number."""
    number = f.call("ptr", f.address(table, Slot.NEW_INT), f"i64 {f.word(result)}")
    f.give_if(f.test("eq", "ptr", number, "null"), "ptr null")
    f.put(f"ptr {number}", result)
    given = f"ptr {failed}", f"ptr {result}", "i64 1", "ptr null"
    made = f.call("ptr", f.address(table, Slot.CALL_OBJECT), *given)
    f.call("void", f.address(table, Slot.DEC_REF), f"ptr {number}")
    f.give(f"ptr {made}")
