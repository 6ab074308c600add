"""Models written by hand, as `run` functions, for tests of what runs them."""

from __future__ import annotations

import ctypes
import functools

from rlx.backends.cpu.isa import host
from rlx.backends.cpu.llvm.compile import Native, compiled
from rlx.backends.cpu.program.call_context import NUM_WORDS, Mode, Word
from rlx.backends.cpu.runtime.blob import Blob
from rlx.backends.cpu.runtime.control_code import Function
from rlx.backends.cpu.runtime.support_code import support

KERNELS = """

; adds 1 to each of its units, notes the worker's scratch, and fails at unit sizes[0]
define internal i32 @mark(ptr %buffers, ptr %sizes, i64 %start, i64 %stop, ptr %scratch,
                          ptr %poll) {
entry:
  %data = load ptr, ptr %buffers
  %bad = load i64, ptr %sizes
  %mine = load i64, ptr %scratch
  %more = sub i64 %stop, %start
  %sum = add i64 %mine, %more
  store i64 %sum, ptr %scratch
  br label %next
next:
  %i = phi i64 [ %start, %entry ], [ %j, %body ]
  %in = icmp slt i64 %i, %stop
  br i1 %in, label %check, label %good
check:
  %is.bad = icmp eq i64 %i, %bad
  br i1 %is.bad, label %fail, label %body
fail:
  ret i32 7
body:
  %at = getelementptr i32, ptr %data, i64 %i
  %old = load i32, ptr %at
  %new = add i32 %old, 1
  store i32 %new, ptr %at
  %j = add i64 %i, 1
  br label %next
good:
  ret i32 0
}

; externals: data, then a record of: units, grain, rounds, bad unit, scratch, scratch bytes
define i32 @run(ptr %context) {
entry:
  %ext.at = getelementptr ptr, ptr %context, i64 5
  %ext = load ptr, ptr %ext.at
  %rec.at = getelementptr ptr, ptr %ext, i64 1
  %rec = load ptr, ptr %rec.at
  %grain.at = getelementptr i64, ptr %rec, i64 1
  %rounds.at = getelementptr i64, ptr %rec, i64 2
  %sizes = getelementptr i64, ptr %rec, i64 3
  %scratch.at = getelementptr i64, ptr %rec, i64 4
  %bytes.at = getelementptr i64, ptr %rec, i64 5
  %units = load i64, ptr %rec
  %grain = load i64, ptr %grain.at
  %rounds = load i64, ptr %rounds.at
  %scratch = load ptr, ptr %scratch.at
  %bytes = load i64, ptr %bytes.at
  %pool.at = getelementptr ptr, ptr %context, i64 6
  %pool = load ptr, ptr %pool.at
  %alone = icmp eq ptr %pool, null
  %region.at = getelementptr ptr, ptr %context, i64 7
  %region = load ptr, ptr %region.at
  br label %next
next:
  %r = phi i64 [ 0, %entry ], [ %s, %after ]
  %in = icmp slt i64 %r, %rounds
  br i1 %in, label %go, label %good
go:
  br i1 %alone, label %serial, label %parallel
serial:
  %a = call i32 @mark(ptr %ext, ptr %sizes, i64 0, i64 %units, ptr %scratch, ptr null)
  br label %after
parallel:
  %b = call i32 %region(ptr %context, ptr @mark, ptr %ext, ptr %sizes, i64 %units, i64 %grain,
                        ptr %scratch, i64 %bytes)
  br label %after
after:
  %code = phi i32 [ %a, %serial ], [ %b, %parallel ]
  %s = add i64 %r, 1
  %failed = icmp ne i32 %code, 0
  br i1 %failed, label %bad, label %next
bad:
  ret i32 %code
good:
  ret i32 0
}
"""


@functools.cache
def marks() -> Native:
    return Native(KERNELS, host())


def call_marks(data, units, grain, rounds, threads, bad=-1, pool=None, run=None):
    """The code, and how many units each worker did."""
    scratch = (ctypes.c_int64 * (8 * max(1, threads)))()
    record = (ctypes.c_int64 * 6)(units, grain, rounds, bad, ctypes.addressof(scratch), 64)
    externals = (ctypes.c_void_p * 2)(data.ctypes.data, ctypes.addressof(record))
    words = (ctypes.c_int64 * NUM_WORDS)()
    words[Word.MODE], words[Word.THREADS] = Mode.CALL, threads
    words[Word.EXTERNALS] = ctypes.addressof(externals)
    pool = support().pool if pool is None else pool
    pool.grow(threads)
    run = marks().address("run") if run is None else run
    code = pool.call(ctypes.addressof(words), run)
    return code, [scratch[8 * i] for i in range(threads)]


def _loop(f: Function, pointers, count, body) -> None:
    """`body` makes a float of one float of each pointer but the last, where it goes."""
    *sources, target = pointers
    with f.count(count) as i:
        places = [f.let(f"getelementptr float, ptr {p}, i64 {i}") for p in sources]
        value = body(*(f.let(f"load float, ptr {p}") for p in places))
        f.do(f"store float {value}, ptr {f.let(f'getelementptr float, ptr {target}, i64 {i}')}")


def _start(f: Function):
    """The number of elements, the needs and the externals."""
    count = f.word(f.address("%context", Word.SYMBOLS))
    needs, arrays = (f.address("%context", w) for w in (Word.NEEDS, Word.EXTERNALS))
    return count, needs, arrays


def _module(f: Function) -> str:
    return f.text() + "attributes #0 = { nounwind }\n"


@functools.cache
def scaled_sum() -> Blob:
    """out[n] = x[n] · w + y[n] by way of the arena; fails at step 5 with code 3 if x[0] is -77.
    `w` is the first of the packed weights; a param, whose value is 1, is multiplied too."""
    f = Function("define i32 @run(ptr %context)")
    count, needs, arrays = _start(f)
    size = f.let(f"shl i64 {count}, 2")
    with f.when(f.test("eq", "i64", f.word("%context", Word.MODE), 0)):
        for place, value in enumerate((size, 4, size, count, count, count)):
            f.put(f"i64 {value}", needs, place)
        over = f.let(f"zext i1 {f.test('sgt', 'i64', count, 10_000_000)} to i64")
        f.put(f"i64 {over}", needs, 6)
        f.give("i32 0")
    x, y, param, out = (f.address(arrays, i) for i in range(4))
    with f.when(f.test("sgt", "i64", count, 0)):
        first = f.let(f"load float, ptr {x}")
        with f.when(f.let(f"fcmp oeq float {first}, -77.0")):
            f.put(f"i64 {5 << 32 | 3}", "%context", Word.FAILED)
            f.give("i32 3")
    w = f.let(f"load float, ptr {f.address('%context', Word.WEIGHTS)}")
    p = f.let(f"load float, ptr {param}")
    arena = f.address("%context", Word.ARENA)
    _loop(f, (x, arena), count, lambda a: f.let(f"fmul float {a}, {w}"))
    _loop(f, (arena, arena), count, lambda a: f.let(f"fmul float {a}, {p}"))
    _loop(f, (arena, y, out), count, lambda a, b: f.let(f"fadd float {a}, {b}"))
    f.give("i32 0")
    return compiled(_module(f), host())


@functools.cache
def positives() -> Blob:
    """The numbers of x[n] above 0, side by side, and how many there are, f32 of rank 0."""
    f = Function("define i32 @run(ptr %context)")
    count, needs, arrays = _start(f)
    size = f.let(f"shl i64 {count}, 2")
    with f.when(f.test("eq", "i64", f.word("%context", Word.MODE), 0)):
        for place, value in enumerate((0, 0, size, count, 4, count, 0)):
            f.put(f"i64 {value}", needs, place)
        f.give("i32 0")
    x, out, total = (f.address(arrays, i) for i in range(3))
    found = f.slot()
    f.put("i64 0", found)
    with f.count(count) as i:
        value = f.let(f"load float, ptr {f.let(f'getelementptr float, ptr {x}, i64 {i}')}")
        with f.when(f.let(f"fcmp ogt float {value}, 0.0")):
            number = f.word(found)
            place = f.let(f"getelementptr float, ptr {out}, i64 {number}")
            f.do(f"store float {value}, ptr {place}")
            f.put(f"i64 {f.add(number, 1)}", found)
    f.do(f"store float {f.let(f'uitofp i64 {f.word(found)} to float')}, ptr {total}")
    f.put(f"i64 {f.word(found)}", needs, 3)
    f.give("i32 0")
    return compiled(_module(f), host())


@functools.cache
def host_step() -> Blob:
    """out[n] is what step 42 of the host makes of x[n]."""
    f = Function("define i32 @run(ptr %context)")
    count, needs, arrays = _start(f)
    size = f.let(f"shl i64 {count}, 2")
    with f.when(f.test("eq", "i64", f.word("%context", Word.MODE), 0)):
        for place, value in enumerate((0, 0, size, count, count, 0)):
            f.put(f"i64 {value}", needs, place)
        f.give("i32 0")
    given = "ptr %context", "i64 42", f"ptr {arrays}"
    f.give(f"i32 {f.call('i32', f.address('%context', Word.HOST), *given)}")
    return compiled(_module(f), host())
