"""The native side of the thread pool: a region handed out to workers, in LLVM text.

A region is open while its caller still has work. All that decides who may touch it is one word:

    epoch (32 bits) | open (1 bit) | workers inside (31 bits)

A worker enters by adding 1 to a word that it saw open, and leaves by taking it off. The caller
closes the region when nothing is left to hand out, then waits for those inside, and for nobody
else: a worker that wakes late finds the word changed, and never sees the region's data.

The units of a region are cut into chunks. Each worker has a range of chunks, so that it meets the
same data in every region; one that has finished takes chunks from the ranges of others.
"""

from __future__ import annotations

from rlx.backends.cpu.program.call_context import Word
from rlx.backends.cpu.runtime.control_code import Function, Value
from rlx.backends.cpu.runtime.interrupt_poll import INTERRUPTED, poll_text
from rlx.backends.cpu.runtime.thread_pool_layout import LINE, MASK_WORDS, Place
from rlx.backends.cpu.system.base import System
from rlx.backends.cpu.system.waiting_code import waiting_text

SPIN = 2000
"""Pauses before a worker goes to sleep: some tens of microseconds."""


_OPEN = 1 << 31
_INSIDE = _OPEN - 1
_PAUSES = {
    "x86_64": ("declare void @llvm.x86.sse2.pause()", "call void @llvm.x86.sse2.pause()"),
    "aarch64": ("declare void @llvm.aarch64.hint(i32)", "call void @llvm.aarch64.hint(i32 1)"),
}


def pool_text(system: System) -> str:
    """`call`, `region` and `worker` for a system on a machine."""
    writer = _Pool(system.machine)
    made = [writer.work(), writer.settle(), writer.worker(), writer.region(), writer.call()]
    made += [waiting_text(system), poll_text()]
    declared = _PAUSES[system.machine][0], "declare i64 @llvm.umin.i64(i64, i64)"
    return "\n".join([*declared, *made])


class _Pool:
    def __init__(self, arch: str) -> None:
        self._pause = _PAUSES[arch][1]

    # -- handing out ----------------------------------------------------------------------------

    def work(self) -> str:
        """Do chunks until there are none: those of the own range, then those of the others'."""
        f = Function("define internal void @work(ptr %pool, i64 %self)")
        parts = f.word("%pool", Place.PARTS)
        with f.count(parts) as turn:
            victim = f.let(f"urem i64 {f.add('%self', turn)}, {parts}")
            line = f.add(f.let(f"mul i64 {victim}, {LINE}"), Place.RANGES)
            spot = f.nth("%pool", line)
            end = f.word(spot, 1)
            with f.forever() as (_, done):
                self._stop_when_done(f, spot, end, done)
                chunk = f.let(f"atomicrmw add ptr {spot}, i64 1 monotonic")
                f.jump_if(f.test("sge", "i64", chunk, end), done)
                self._do_chunk(f, chunk)
                with f.when(f.test("eq", "i64", "%self", 0)):
                    self._poll(f)
        f.give()
        return f.text()

    def _poll(self, f: Function) -> None:
        """The caller asks for signals; what was interrupted has failed, for all threads."""
        given = f"ptr {f.nth(f.address('%pool', Place.CONTEXT), Word.POLL)}"
        with f.when(f.test("ne", "i32", f.call("i32", "@poll", given), 0)):
            self._fail(f, INTERRUPTED)

    def _fail(self, f: Function, code: Value) -> None:
        place = f.nth("%pool", Place.CODE)
        f.do(f"store atomic i64 {code}, ptr {place} monotonic, align 8")

    def _stop_when_done(self, f: Function, spot: str, end: str, done: str) -> None:
        """Look before counting up: a range that is used up is only read."""
        seen = f.let(f"load atomic i64, ptr {spot} monotonic, align 8")
        f.jump_if(f.test("sge", "i64", seen, end), done)
        failed = f.nth("%pool", Place.CODE)
        code = f.let(f"load atomic i64, ptr {failed} monotonic, align 8")
        f.jump_if(f.test("ne", "i64", code, 0), done)

    def _do_chunk(self, f: Function, chunk: str) -> None:
        grain, units = f.word("%pool", Place.GRAIN), f.word("%pool", Place.UNITS)
        start = f.let(f"mul i64 {chunk}, {grain}")
        stop = f.least(f.add(start, grain), units)
        apart = f.let(f"mul i64 %self, {f.word('%pool', Place.SCRATCH_BYTES)}")
        scratch = f.at(f.address("%pool", Place.SCRATCH), apart)
        buffers, sizes = f.address("%pool", Place.BUFFERS), f.address("%pool", Place.SIZES)
        given = f"ptr {buffers}", f"ptr {sizes}", f"i64 {start}", f"i64 {stop}", f"ptr {scratch}"
        own = f.nth(f.address("%pool", Place.CONTEXT), Word.POLL)
        is_caller, other = f.test("eq", "i64", "%self", 0), f.nth("%pool", Place.POLL)
        poll = f.let(f"select i1 {is_caller}, ptr {own}, ptr {other}")
        code = f.call("i32", f.address("%pool", Place.FUNCTION), *given, f"ptr {poll}")
        with f.when(f.test("ne", "i32", code, 0)):
            self._fail(f, f.let(f"zext i32 {code} to i64"))

    # -- workers --------------------------------------------------------------------------------

    def settle(self) -> str:
        """Leave the caller's processor: two threads on one take twice as long as they should."""
        f = Function("define internal void @settle(ptr %pool)")
        off = f.test("eq", "i64", f.word("%pool", Place.PINS), 0)
        f.give_if(off, "void")
        here = f.call("i64", "@processor", "ptr %pool")
        there = f.word("%pool", Place.CALLER_CPU)
        f.give_if(f.test("ne", "i64", here, there), "void")
        f.give_if(f.test("uge", "i64", here, 64 * MASK_WORDS), "void")
        mask = f.slot(f"[{MASK_WORDS} x i64]")
        with f.count(MASK_WORDS) as i:
            f.put(f"i64 {f.word('%pool', f.add(i, Place.ALLOWED))}", mask, i)
        word, bit = f.let(f"lshr i64 {here}, 6"), f.let(f"and i64 {here}, 63")
        others = f.let(f"xor i64 {f.let(f'shl i64 1, {bit}')}, -1")
        f.put(f"i64 {f.let(f'and i64 {f.word(mask, word)}, {others}')}", mask, word)
        f.call("void", "@pin", "ptr %pool", f"ptr {mask}")
        f.give()
        return f.text()

    def worker(self) -> str:
        """The life of a worker: look, take part, look again; after a while, sleep."""
        f = Function("define void @worker(ptr %pool, i64 %self)")
        last, spins = f.slot("i32"), f.slot()
        f.do(f"store i32 0, ptr {last}")
        f.put("i64 0", spins)
        with f.forever() as (again, _):
            state = f.let(f"load atomic i64, ptr {f.nth('%pool', Place.STATE)} acquire, align 8")
            epoch = f.let(f"trunc i64 {f.let(f'lshr i64 {state}, 32')} to i32")
            is_new = f.test("ne", "i32", epoch, f.load("i32", last))
            is_open = f.test("ne", "i64", f.let(f"and i64 {state}, {_OPEN}"), 0)
            parts = f.nth("%pool", Place.PARTS)
            hint = f.let(f"load atomic i64, ptr {parts} monotonic, align 8")
            is_mine = f.test("slt", "i64", "%self", hint)
            enters = f.let(f"and i1 {f.let(f'and i1 {is_new}, {is_open}')}, {is_mine}")
            with f.when(enters):
                self._take_part(f, state, epoch, last, again)
                f.put("i64 0", spins)
            f.do(self._pause)
            count = f.add(f.word(spins), 1)
            f.put(f"i64 {count}", spins)
            f.jump_if(f.test("slt", "i64", count, SPIN), again)
            self._sleep(f, epoch)
            f.put("i64 0", spins)
        return f.text()

    def _take_part(self, f: Function, state: str, epoch: str, last: str, again: str) -> None:
        place, more = f.nth("%pool", Place.STATE), f.add(state, 1)
        swap = f.let(f"cmpxchg ptr {place}, i64 {state}, i64 {more} acquire monotonic")
        missed = f.let(f"xor i1 {f.let(f'extractvalue {{ i64, i1 }} {swap}, 1')}, true")
        f.jump_if(missed, again)
        f.do(f"store i32 {epoch}, ptr {last}")
        with f.when(f.test("slt", "i64", "%self", f.word("%pool", Place.PARTS))):
            f.call("void", "@settle", "ptr %pool")
            f.call("void", "@work", "ptr %pool", "i64 %self")
        f.let(f"atomicrmw sub ptr {place}, i64 1 release")

    def _sleep(self, f: Function, epoch: str) -> None:
        """Until the epoch is another; the system looks once more before the worker sleeps."""
        place = f.nth("%pool", Place.ASLEEP)
        number = f.let(f"trunc i64 {f.let('and i64 %self, 31')} to i32")
        bit = f.let(f"shl i32 1, {number}")
        f.let(f"atomicrmw or ptr {place}, i32 {bit} seq_cst")
        watched = f.at(f.nth("%pool", Place.STATE), 4)
        f.call("void", "@sleep", "ptr %pool", f"ptr {watched}", f"i32 {epoch}", f"i32 {bit}")
        f.let(f"atomicrmw and ptr {place}, i32 {f.let(f'xor i32 {bit}, -1')} seq_cst")

    # -- callers --------------------------------------------------------------------------------

    def region(self) -> str:
        """Hand out units; what `Word.REGION` points to."""
        f = Function(
            "define i32 @region(ptr %context, ptr %function, ptr %buffers, ptr %sizes, "
            "i64 %units, i64 %grain, ptr %scratch, i64 %scratch_bytes)"
        )
        f.do(f"%pool = load ptr, ptr {f.nth('%context', Word.POOL)}")
        given = "ptr %context", "ptr %function", "ptr %buffers", "ptr %sizes", "i64 %units"
        alone = *given, "i64 %grain", "ptr %scratch"
        with f.when(f.test("eq", "ptr", "%pool", "null")):
            f.give(f"i32 {f.call('i32', '@alone', *alone)}")
        last = f.let(f"sub i64 {f.add('%units', '%grain')}, 1")
        chunks = f.let(f"udiv i64 {last}, %grain")
        threads = f.word("%context", Word.THREADS)
        parts = f.least(f.least(threads, f.word("%pool", Place.COUNT)), chunks)
        with f.when(f.test("ule", "i64", parts, 1)):
            f.give(f"i32 {f.call('i32', '@alone', *alone)}")
        self._describe(f, parts)
        self._ranges(f, parts, chunks)
        self._open(f, parts)
        f.call("void", "@work", "ptr %pool", "i64 0")
        self._close(f)
        code = f.word("%pool", Place.CODE)
        f.give(f"i32 {f.let(f'trunc i64 {code} to i32')}")
        return f.text()

    def _describe(self, f: Function, parts: str) -> None:
        f.put("ptr %context", "%pool", Place.CONTEXT)
        f.put("ptr @worker_poll", "%pool", Place.POLL)
        f.put("ptr %function", "%pool", Place.FUNCTION)
        f.put("ptr %buffers", "%pool", Place.BUFFERS)
        f.put("ptr %sizes", "%pool", Place.SIZES)
        f.put("i64 %units", "%pool", Place.UNITS)
        f.put("i64 %grain", "%pool", Place.GRAIN)
        f.put("ptr %scratch", "%pool", Place.SCRATCH)
        f.put("i64 %scratch_bytes", "%pool", Place.SCRATCH_BYTES)
        f.put("i64 0", "%pool", Place.CODE)
        f.do(f"store atomic i64 {parts}, ptr {f.nth('%pool', Place.PARTS)} monotonic, align 8")

    def _ranges(self, f: Function, parts: str, chunks: str) -> None:
        with f.count(parts) as i:
            line = f.nth("%pool", f.add(f.let(f"mul i64 {i}, {LINE}"), Place.RANGES))
            for index, number in enumerate((i, f.add(i, 1))):
                edge = f.let(f"udiv i64 {f.let(f'mul i64 {number}, {chunks}')}, {parts}")
                f.put(f"i64 {edge}", line, index)

    def _open(self, f: Function, parts: str) -> None:
        """The next epoch, open; then wake those that sleep and are wanted."""
        place = f.nth("%pool", Place.STATE)
        epoch = f.let(f"lshr i64 {f.let(f'load i64, ptr {place}')}, 32")
        state = f.let(f"shl i64 {f.add(epoch, 1)}, 32")
        f.let(f"atomicrmw xchg ptr {place}, i64 {f.let(f'or i64 {state}, {_OPEN}')} seq_cst")
        shift = f.least(parts, 32)
        bits = f.let(f"sub i64 {f.let(f'shl i64 1, {shift}')}, 1")
        wanted = f.let(f"trunc i64 {bits} to i32")
        asleep = f.nth("%pool", Place.ASLEEP)
        sleeping = f.let(f"load atomic i32, ptr {asleep} seq_cst, align 4")
        wake = f.let(f"and i32 {sleeping}, {wanted}")
        with f.when(f.test("ne", "i32", wake, 0)):
            watched = f.at(place, 4)
            f.call("void", "@wake", "ptr %pool", f"ptr {watched}", f"i32 {wake}")

    def _close(self, f: Function) -> None:
        """Nobody enters any more; those inside finish their chunk, or leave it where the caller is
        interrupted meanwhile."""
        place = f.nth("%pool", Place.STATE)
        f.let(f"atomicrmw and ptr {place}, i64 {~_OPEN} acq_rel")
        spins = f.slot()
        f.put("i64 0", spins)
        with f.forever() as (again, done):
            state = f.let(f"load atomic i64, ptr {place} acquire, align 8")
            inside = f.let(f"and i64 {state}, {_INSIDE}")
            f.jump_if(f.test("eq", "i64", inside, 0), done)
            f.do(self._pause)
            count = f.add(f.word(spins), 1)
            f.put(f"i64 {count}", spins)
            f.jump_if(f.test("slt", "i64", count, SPIN), again)
            f.call("void", "@yield", "ptr %pool")
            self._poll(f)

    def call(self) -> str:
        """Run a model: with the workers if they are free, else alone. Both give the same bits."""
        f = Function("define i32 @call(ptr %pool, ptr %context, ptr %run)")
        f.put("ptr @region", "%context", Word.REGION)
        f.put("ptr null", "%context", Word.POOL)
        f.put("ptr @poll", "%context", Word.POLL)
        f.put("ptr %pool", "%context", Word.SYSTEM)
        f.put(f"i64 {f.call('i64', '@now', 'ptr %pool')}", "%context", Word.POLLED)
        lock = f.nth("%pool", Place.LOCK)
        with f.when(f.test("sgt", "i64", f.word("%context", Word.THREADS), 1)):
            swap = f.let(f"cmpxchg ptr {lock}, i64 0, i64 1 acquire monotonic")
            with f.when(f.let(f"extractvalue {{ i64, i1 }} {swap}, 1")):
                f.put("ptr %pool", "%context", Word.POOL)
                here = f.call("i64", "@processor", "ptr %pool")
                f.put(f"i64 {here}", "%pool", Place.CALLER_CPU)
                code = f.call("i32", "%run", "ptr %context")
                f.do(f"store atomic i64 0, ptr {lock} release, align 8")
                f.give(f"i32 {code}")
        f.give(f"i32 {f.call('i32', '%run', 'ptr %context')}")
        return f.text()
