"""Digests of memory in LLVM text: see `core/memory_digests.py`.

A multiply-add hash over stripes of 64 bytes: each 64-bit lane is combined with a key that differs
from stripe to stripe, its halves are multiplied, and the neighbouring lane is added, so that all
bits count where a half is zero.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rlx.backends.cpu.program.call_context import NUM_WORDS, Word
from rlx.backends.cpu.runtime.control_code import Function
from rlx.core.memory_digests import Blocks, MemoryDigests
from rlx.core.page_writes import Span

if TYPE_CHECKING:
    from rlx.backends.cpu.runtime.support_code import Support

FEW = 64
"""Blocks that one thread hashes: 4 MiB, some 200 µs. To wait for a worker that the system has put
aside takes longer, and models with so few weights ask for none."""
_LANES, _WORDS = 8, 3
_VECTOR = f"<{_LANES} x i64>"
_PRIME, _STEP = 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F
_CHECK = ctypes.PYFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, *[ctypes.c_void_p] * 3)
_NOTE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)


class NativeDigests(MemoryDigests):
    """Hashed by native code, on as many threads as a call has."""

    def __init__(
        self, support: Support, threads: int, spans: Sequence[Span], *, counts_writes: bool = False
    ) -> None:
        self._support, self._threads = support, threads
        super().__init__(spans, counts_writes=counts_writes)

    def _note(self, blocks: Blocks) -> None:
        _NOTE(self._support.code.address("note_digests"))(blocks.ctypes.data, len(blocks))

    def _is_same(self, blocks: Blocks) -> bool:
        check = _CHECK(self._support.code.address("check_digests"))
        pool = self._support.pool.address
        return check(pool, blocks.ctypes.data, len(blocks), self._threads) == 0


def digest_text() -> str:
    """`digest`, `note_digests` and `check_digests`."""
    return "\n".join([_digest(), _note(), _check_blocks(), _check_run(), _check()])


def _digest() -> str:
    f = Function("define internal i64 @digest(ptr %data, i64 %bytes)")
    sums, keys = f.slot(_VECTOR, 64), f.slot(_VECTOR, 64)
    f.do(f"store {_VECTOR} zeroinitializer, ptr {sums}")
    f.do(f"store {_VECTOR} {_constant([_PRIME * (2 * i + 1) for i in range(_LANES)])}, ptr {keys}")
    with f.count(f.let("lshr i64 %bytes, 6")) as i:
        _add_stripe(f, f.at("%data", f.let(f"shl i64 {i}, 6")), sums, keys)
    total = f.slot()
    f.put("i64 %bytes", total)
    words = f.let("lshr i64 %bytes, 3")
    whole = f.let(f"and i64 {words}, -{_LANES}")
    with f.count(f.let(f"sub i64 {words}, {whole}")) as i:
        at = f.nth("%data", f.add(whole, i))
        _fold(f, total, f.let(f"load i64, ptr {at}, align 1"))
    with f.count(f.let("and i64 %bytes, 7")) as i:
        byte = f.load("i8", "%data", f.add(f.let(f"shl i64 {words}, 3"), i))
        _fold(f, total, f.let(f"zext i8 {byte} to i64"))
    with f.count(_LANES) as i:
        _fold(f, total, f.word(sums, i))
    f.give(f"i64 {f.word(total)}")
    return f.text()


def _add_stripe(f: Function, at: str, sums: str, keys: str) -> None:
    data = f.let(f"load {_VECTOR}, ptr {at}, align 1")
    key = f.let(f"load {_VECTOR}, ptr {keys}")
    mixed = f.let(f"xor {_VECTOR} {data}, {key}")
    low = f.let(f"and {_VECTOR} {mixed}, {_constant([0xFFFFFFFF] * _LANES)}")
    high = f.let(f"lshr {_VECTOR} {mixed}, {_constant([32] * _LANES)}")
    product = f.let(f"mul {_VECTOR} {low}, {high}")
    pairs = ", ".join(f"i32 {i ^ 1}" for i in range(_LANES))
    other = f.let(f"shufflevector {_VECTOR} {data}, {_VECTOR} poison, <{_LANES} x i32> <{pairs}>")
    made = f.let(f"add {_VECTOR} {f.let(f'add {_VECTOR} {product}, {other}')}, "
                 f"{f.let(f'load {_VECTOR}, ptr {sums}')}")  # fmt: skip
    f.do(f"store {_VECTOR} {made}, ptr {sums}")
    moved = f.let(f"add {_VECTOR} {key}, {_constant([_STEP] * _LANES)}")
    f.do(f"store {_VECTOR} {moved}, ptr {keys}")


def _fold(f: Function, total: str, word: str) -> None:
    """The next word into a total: xor, multiply, and the high bits down."""
    mixed = f.let(f"mul i64 {f.let(f'xor i64 {f.word(total)}, {word}')}, {_signed(_PRIME)}")
    high = f.let(f"lshr i64 {mixed}, 29")
    f.put(f"i64 {f.let(f'xor i64 {mixed}, {high}')}", total)


def _constant(values: Sequence[int]) -> str:
    return "<" + ", ".join(f"i64 {_signed(v)}" for v in values) + ">"


def _signed(value: int) -> int:
    return ctypes.c_int64(value & (1 << 64) - 1).value


def _note() -> str:
    f = Function("define void @note_digests(ptr %blocks, i64 %count)")
    with f.count("%count") as i:
        block = f.nth("%blocks", f.let(f"mul i64 {i}, {_WORDS}"))
        f.put(f"i64 {_digest_of(f, block)}", block, 2)
    f.give()
    return f.text()


def _digest_of(f: Function, block: str) -> str:
    return f.call("i64", "@digest", f"ptr {f.address(block)}", f"i64 {f.word(block, 1)}")


def _check_blocks() -> str:
    """Blocks from one to another, as a part of a region: 1 at the first that is other than it
    was."""
    f = Function(
        "define internal i32 @check_blocks(ptr %blocks, ptr %sizes, i64 %start, i64 %stop, "
        "ptr %scratch, ptr %poll)"
    )
    with f.count(f.let("sub i64 %stop, %start")) as i:
        block = f.nth("%blocks", f.let(f"mul i64 {f.add('%start', i)}, {_WORDS}"))
        f.give_if(f.test("ne", "i64", _digest_of(f, block), f.word(block, 2)), "i32 1")
    f.give("i32 0")
    return f.text()


def _check_run() -> str:
    """All blocks, as a run of a model: the context has them where a model has its sizes."""
    f = Function("define internal i32 @check_run(ptr %context)")
    blocks, count = f.address("%context", Word.EXTERNALS), f.word("%context", Word.SYMBOLS)
    given = "ptr %context", "ptr @check_blocks", f"ptr {blocks}", "ptr null", f"i64 {count}"
    f.give(f"i32 {f.call('i32', '@region', *given, 'i64 1', 'ptr null', 'i64 0')}")
    return f.text()


def _check() -> str:
    """0 where all blocks are what they were, 1 where one is not; with Python's lock, which is let
    go of where there are many."""
    f = Function("define i32 @check_digests(ptr %pool, ptr %blocks, i64 %count, i64 %threads)")
    with f.when(f.test("ule", "i64", "%count", FEW)):
        given = "ptr %blocks", "ptr null", "i64 0", "i64 %count", "ptr null", "ptr null"
        f.give(f"i32 {f.call('i32', '@check_blocks', *given)}")
    context = f.slot(f"[{NUM_WORDS} x i64]", 16)
    f.put("ptr %blocks", context, Word.EXTERNALS)
    f.put("i64 %count", context, Word.SYMBOLS)
    f.put("i64 %threads", context, Word.THREADS)
    given = "ptr %pool", f"ptr {context}", "ptr @check_run"
    f.give(f"i32 {f.call('i32', '@call_python', *given)}")
    return f.text()
