"""Interrupts while native code runs, in LLVM text: Python is asked for signals now and then.

Python handles a signal in its main thread, between two bytecodes: a call that stays in native code
would keep Ctrl-C waiting until it ends. So the thread that called looks at the clock between chunks
of a region, between turns of a loop and between blocks of a kernel's long loops, and after
`PERIOD_NS` takes Python's lock and lets it run its handlers. Where one raises, the call ends with
`INTERRUPTED`, and the exception is set.

    poll          i32 (address of Word.POLL in the context): 0, or INTERRUPTED
    worker_poll   i32 (address of Place.POLL in the pool): 0, or the code of a failed region
    alone         a task by one thread, in pieces that take some milliseconds each
    call_python   `call`, for a caller that holds Python's lock
"""

from __future__ import annotations

from rlx.backends.cpu.program.call_context import Word
from rlx.backends.cpu.runtime.control_code import Function
from rlx.backends.cpu.runtime.thread_pool_layout import Place

INTERRUPTED = 0x7FFFFFFF
"""What a run gives where a handler of Python raised; no step has such a code."""
PERIOD_NS = 50_000_000
_SHORT_NS, _LONG_NS = 10_000_000, 40_000_000
"""A piece that takes less is followed by one of twice as many units, by half as many if more."""


def poll_text() -> str:
    return "\n".join([_poll_at(), _poll(), _worker_poll(), _alone(), _call_python()])


def _poll_at() -> str:
    """Let Python handle signals, if the last time is long ago."""
    f = Function("define internal i32 @poll_at(ptr %context, ptr %system, i64 %now)")
    polled = f.word("%context", Word.POLLED)
    f.give_if(f.test("slt", "i64", polled, 0), f"i32 {INTERRUPTED}")
    passed = f.let(f"sub i64 %now, {polled}")
    f.give_if(f.test("slt", "i64", passed, PERIOD_NS), "i32 0")
    f.put("i64 %now", "%context", Word.POLLED)
    ensure, check, release = (
        f.address("%system", p) for p in (Place.ENSURE, Place.CHECK_SIGNALS, Place.RELEASE)
    )
    state = f.call("i32", ensure)
    raised = f.call("i32", check)
    f.call("void", release, f"i32 {state}")
    f.give_if(f.test("eq", "i32", raised, 0), "i32 0")
    f.put("i64 -1", "%context", Word.POLLED)
    f.give(f"i32 {INTERRUPTED}")
    return f.text()


def _poll() -> str:
    """What `Word.POLL` points to, and is called with where it is."""
    f = Function("define i32 @poll(ptr %self)")
    f.do(f"%context = getelementptr i64, ptr %self, i64 {-Word.POLL}")
    system = f.address("%context", Word.SYSTEM)
    now = f.call("i64", "@now", f"ptr {system}")
    f.give(f"i32 {f.call('i32', '@poll_at', 'ptr %context', f'ptr {system}', f'i64 {now}')}")
    return f.text()


def _worker_poll() -> str:
    """What `Place.POLL` points to: only the caller asks Python, and tells workers by the code."""
    f = Function("define i32 @worker_poll(ptr %self)")
    place = f.nth("%self", Place.CODE - Place.POLL)
    code = f.let(f"load atomic i64, ptr {place} monotonic, align 8")
    f.give(f"i32 {f.let(f'trunc i64 {code} to i32')}")
    return f.text()


def _alone() -> str:
    """All units of a task, one piece after the other. Pieces end where chunks do, so that the
    bits are those of any number of threads."""
    f = Function(
        "define internal i32 @alone(ptr %context, ptr %function, ptr %buffers, ptr %sizes, "
        "i64 %units, i64 %grain, ptr %scratch)"
    )
    start, piece, since = f.slot(), f.slot(), f.slot()
    f.put("i64 0", start)
    f.put("i64 %grain", piece)
    system, poll = f.address("%context", Word.SYSTEM), f.nth("%context", Word.POLL)
    f.put(f"i64 {f.call('i64', '@now', f'ptr {system}')}", since)
    with f.forever():
        first, size = f.word(start), f.word(piece)
        stop = f.least(f.add(first, size), "%units")
        given = "ptr %buffers", "ptr %sizes", f"i64 {first}", f"i64 {stop}", "ptr %scratch"
        code = f.call("i32", "%function", *given, f"ptr {poll}")
        f.give_if(f.test("ne", "i32", code, 0), f"i32 {code}")
        f.give_if(f.test("sge", "i64", stop, "%units"), "i32 0")
        now = f.call("i64", "@now", f"ptr {system}")
        code = f.call("i32", "@poll_at", "ptr %context", f"ptr {system}", f"i64 {now}")
        f.give_if(f.test("ne", "i32", code, 0), f"i32 {code}")
        _resize(f, piece, size, f.let(f"sub i64 {now}, {f.word(since)}"))
        f.put(f"i64 {stop}", start)
        f.put(f"i64 {now}", since)
    return f.text()


def _resize(f: Function, piece: str, size: str, took: str) -> None:
    with f.when(f.test("slt", "i64", took, _SHORT_NS)):
        f.put(f"i64 {f.let(f'shl i64 {size}, 1')}", piece)
    is_divisible = f.test("sgt", "i64", size, "%grain")
    too_long = f.test("sgt", "i64", took, _LONG_NS)
    with f.when(f.let(f"and i1 {is_divisible}, {too_long}")):
        f.put(f"i64 {f.let(f'lshr i64 {size}, 1')}", piece)


def _call_python() -> str:
    f = Function("define i32 @call_python(ptr %pool, ptr %context, ptr %run)")
    state = f.call("ptr", f.address("%pool", Place.SAVE_THREAD))
    code = f.call("i32", "@call", "ptr %pool", "ptr %context", "ptr %run")
    f.call("void", f.address("%pool", Place.RESTORE_THREAD), f"ptr {state}")
    f.give(f"i32 {code}")
    return f.text()
