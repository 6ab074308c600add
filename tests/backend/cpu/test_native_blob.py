"""Code without LLVM: linking, refusing, loading, and letting go."""

from __future__ import annotations

import ctypes
import platform
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from rlx.backends.cpu.isa import ISAS, NEON, host
from rlx.backends.cpu.llvm.compile import compiled
from rlx.backends.cpu.runtime.blob import Blob
from rlx.backends.cpu.runtime.executable_memory import Loaded
from rlx.backends.cpu.runtime.relocations import AARCH64, filled
from rlx.core.errors import Error
from tests.children import require_children

RUNNABLE = [isa for isa in (*ISAS.values(), host()) if isa.triple.startswith(platform.machine())]
RUNNABLE = [isa for isa in RUNNABLE if isa.vector_bytes <= host().vector_bytes]

TABLE = """
@table = internal constant [4 x i64] [i64 11, i64 22, i64 33, i64 44]
define internal i64 @twice(i64 %x) noinline {
  %y = mul i64 %x, 2
  ret i64 %y
}
define i64 @other(i64 %x) noinline {
  %y = add i64 %x, 1
  ret i64 %y
}
define i64 @pick(i64 %i) {
  %at = getelementptr i64, ptr @table, i64 %i
  %v = load i64, ptr %at
  %d = call i64 @twice(i64 %v)
  %e = call i64 @other(i64 %d)
  ret i64 %e
}
define i64 @chosen(i64 %i) {
entry:
  switch i64 %i, label %none [ i64 0, label %a i64 1, label %b i64 2, label %c i64 3, label %d
                               i64 4, label %e ]
a:
  %x = call i64 @pick(i64 3)
  ret i64 %x
b:
  ret i64 700
c:
  %y = call i64 @other(i64 %i)
  ret i64 %y
d:
  %z = call i64 @twice(i64 %i)
  ret i64 %z
e:
  %f = ptrtoint ptr @other to i64
  %t = ptrtoint ptr @chosen to i64
  %s = sub i64 %f, %t
  ret i64 %s
none:
  ret i64 -1
}
"""


def call(loaded: Loaded, name: str, *args: int) -> int:
    kind = ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * len(args))
    return kind(loaded.address(name))(*args)


@pytest.mark.parametrize("isa", RUNNABLE, ids=lambda isa: f"{isa.name}-{isa.cpu}")
def test_calls_and_constants(isa):
    blob = compiled(TABLE, isa)
    loaded = Loaded(Blob.from_bytes(blob.to_bytes()))
    assert sorted(loaded.exports) == ["chosen", "other", "pick"]
    assert [call(loaded, "pick", i) for i in range(4)] == [23, 45, 67, 89]
    assert [call(loaded, "chosen", i) for i in range(4)] == [89, 700, 3, 6]
    assert call(loaded, "chosen", 9) == -1
    assert call(loaded, "chosen", 4) == blob.exports["other"] - blob.exports["chosen"]


ALIGNED = """
@small = internal constant i8 5
@wide = internal constant [16 x float] zeroinitializer, align 64
define i64 @place(i64 %n) {
  %v = load volatile i8, ptr @small
  %a = ptrtoint ptr @wide to i64
  ret i64 %a
}
"""


def test_constants_are_aligned():
    """Behind code of every length."""
    for pad in range(0, 64, 7):
        text = ALIGNED + f"define void @pad() prefix [{pad + 1} x i8] zeroinitializer {{\n"
        assert call(Loaded(compiled(text + "  ret void\n}", host())), "place", 0) % 64 == 0


def test_code_is_not_writable():
    loaded = Loaded(compiled(TABLE, host()))
    start = loaded.address("pick") & -4096
    with open("/proc/self/maps") as maps:
        rows = [line.split() for line in maps]
    ours = next(r for r in rows if int(r[0].split("-")[0], 16) <= start < end_of(r))
    assert ours[1] == "r-xp"


def end_of(row):
    return int(row[0].split("-")[1], 16)


MEMORY = """
declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)
declare void @llvm.memmove.p0.p0.i64(ptr, ptr, i64, i1)
define void @fill(ptr %a, ptr %b, i64 %n) {
  call void @llvm.memset.p0.i64(ptr %a, i8 7, i64 %n, i1 false)
  ret void
}
define void @copy(ptr %a, ptr %b, i64 %n) {
  call void @llvm.memcpy.p0.p0.i64(ptr %a, ptr %b, i64 %n, i1 false)
  ret void
}
define void @move(ptr %a, ptr %b, i64 %n) {
  call void @llvm.memmove.p0.p0.i64(ptr %a, ptr %b, i64 %n, i1 false)
  ret void
}
"""


@pytest.mark.parametrize("isa", RUNNABLE, ids=lambda isa: f"{isa.name}-{isa.cpu}")
def test_memory_functions_are_its_own(isa):
    loaded = Loaded(compiled(MEMORY, isa))
    assert sorted(loaded.exports) == ["copy", "fill", "move"]
    rng = np.random.default_rng(0)
    for size in (0, 1, 7, 63, 64, 65, 200, 1000):
        for to, source in ((3, 2000), (100, 90), (90, 100), (50, 50), (10, 10 + size)):
            memory = rng.integers(0, 255, 4096, np.uint8)
            base = memory.ctypes.data
            for name in ("fill", "copy", "move"):
                if name == "copy" and 0 < abs(to - source) < size:
                    continue
                want = memory.copy()
                want[to : to + size] = 7 if name == "fill" else want[source : source + size].copy()
                call(loaded, name, base + to, base + source, size)
                np.testing.assert_array_equal(memory, want)


def test_refusals_name_the_culprit():
    calls = "declare float @expf(float)\ndefine float @f(float %x) {\n  %y = call float @expf("
    calls += "float %x)\n  ret float %y\n}\n"
    with pytest.raises(Error, match="expf"):
        compiled(calls, host())
    state = "@counter = internal global i64 5\ndefine i64 @f() {\n  %v = atomicrmw add ptr "
    state += "@counter, i64 1 seq_cst\n  ret i64 %v\n}\n"
    with pytest.raises(Error, match=r"writable memory \(.data"):
        compiled(state, host())
    absolute = "define void @f() {\n  ret void\n}\n@at = constant ptr @f\n"
    with pytest.raises(Error, match=r"\.data\.rel\.ro|relocation"):
        compiled(absolute, host())
    with pytest.raises(Error, match="text that is wrong"):
        compiled("define i64 @f() {\n  ret i32 0\n}", host())
    with pytest.raises(Error, match="text that is wrong"):
        compiled(
            "define void @f() {\n  %x = add i64 %y, 1\n  %y = add i64 %x, 1\n  ret void\n}", host()
        )


def test_broken_bytes_are_refused():
    data = compiled(TABLE, host()).to_bytes()
    for broken in (b"", data[:10], data[:-1], data + b"x", b"X" + data[1:]):
        with pytest.raises(Error, match="no native code"):
            Blob.from_bytes(broken)


def test_other_machines_code_is_linked_and_not_run():
    other = NEON if platform.machine() == "x86_64" else ISAS["sse2"]
    blob = compiled(TABLE + MEMORY, other)
    assert {"pick", "copy"} <= blob.exports.keys()
    with pytest.raises(Error, match="is for"):
        Loaded(blob)


def arm_word(kind: int, word: int, place: int, target: int) -> int:
    code = bytearray(8192 * 4)
    code[place : place + 4] = word.to_bytes(4, "little")
    filled(code, AARCH64[kind], place, target)
    return int.from_bytes(code[place : place + 4], "little")


def test_aarch64_words():
    """Encodings as the architecture manual gives them, put together by hand."""
    assert arm_word(283, 0x94000000, 0x100, 0x180) == 0x94000020  # bl +0x80
    assert arm_word(282, 0x14000000, 0x180, 0x100) == 0x17FFFFE0  # b -0x80
    assert arm_word(275, 0x90000008, 0x1004, 0x5010) == 0x90000028  # adrp x8, 4 pages on
    assert arm_word(275, 0x90000008, 0x1004, 0x2010) == 0xB0000008  # adrp x8, 1 page on
    assert arm_word(277, 0x91000108, 0, 0x5010) == 0x91004108  # add x8, x8, #0x10
    assert arm_word(299, 0x3DC00100, 0, 0x5010) == 0x3DC00500  # ldr q0, [x8, #16]
    with pytest.raises(Error, match="out of reach"):
        arm_word(280, 0x54000000, 0, 1 << 21)
    with pytest.raises(Error, match="aligned"):
        arm_word(299, 0x3DC00100, 0, 0x5008)


CYCLES = """
import sys
from bench.leaks import growth
from rlx.backends.cpu.isa import host
from rlx.backends.cpu.llvm.compile import Native

def cycle(number):
    add = f"fadd <16 x float> splat (float {number}.0), "
    rows = "\\n".join(f"  %v{i} = {add} %v{i - 1}" for i in range(1, 9))
    text = f'''define <16 x float> @f{number}(<16 x float> %v0) "tag"="{number}" {{
{rows}
  ret <16 x float> %v8
}}'''
    Native(text, host()).address(f"f{number}")

print(growth(cycle, cycles=int(sys.argv[2]), after=int(sys.argv[1])))
"""


def test_compiling_and_dropping_does_not_grow():
    """A short form of "under 2 MB for 1,000 cycles after the 200th"; each makes other code."""
    require_children()
    run = subprocess.run(
        [sys.executable, "-c", CYCLES, "50", "150"], capture_output=True, text=True, check=True,
        cwd=Path(__file__).parents[3],
    )  # fmt: skip
    assert int(run.stdout) < 256 << 10
