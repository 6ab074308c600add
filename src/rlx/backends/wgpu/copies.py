"""Copies and fills of any bytes, as kernels: transfers of WebGPU move whole words only, not within
one buffer, and not inside of a compute pass.

A thread writes one word of the target. Of a word that is written in part, which only the first and
the last are, it keeps the other bytes: no other thread writes them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from rlx.backends.gpu.device import ALIGN
from rlx.backends.wgpu.launch import Binding
from rlx.backends.wgpu.memory import Buffers, placed
from rlx.backends.wgpu.stream import Transfer
from rlx.backends.wgpu.wgsl.module import dispatch
from rlx.core.errors import Error

THREADS = 64
PIECE_BYTES = 64 << 20
"""Of one kernel: with what is before and behind it within the least limit of a binding."""
TRANSFER_BYTES = 64 << 10
"""From which a transfer is worth the end of a compute pass."""
WORD_BYTES = 4

_HEAD = """
struct Params { source: u32, to: u32, size: u32, fold: u32 }
@group(0) @binding(0) var<storage, read_write> m0: array<u32>;
"""
_TARGET = """
fn put(word: u32, v: u32) {
  let first = i32(word * 4u);
  let low = u32(max(0, i32(p.to) - first)) * 8u;
  let high = u32(min(4, i32(p.to + p.size) - first)) * 8u;
  var mask = 0xffffffffu << low;
  if (high < 32u) { mask &= (1u << high) - 1u; }
  if (mask == 0xffffffffu) { TO[word] = v; } else { TO[word] = (TO[word] & ~mask) | (v & mask); }
}
@compute @workgroup_size(64)
fn k_main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
  let i = (group.y * p.fold + group.x) * 64u + thread;
  let word = (p.to >> 2u) + i;
  if (word * 4u >= p.to + p.size) { return; }
"""
COPY = (
    _HEAD
    + "@group(0) @binding(1) var<storage, read_write> m1: array<u32>;\n"
    + "@group(0) @binding(2) var<uniform> p: Params;"
    + _TARGET.replace("TO", "m1")
    + """
  let at = i32(p.source) + i32(word * 4u) - i32(p.to);
  let shift = u32(at & 3) * 8u;
  let last = i32(arrayLength(&m0)) - 1;
  var v = m0[max(at >> 2u, 0)];
  if (shift != 0u) { v = (v >> shift) | (m0[min((at >> 2u) + 1, last)] << (32u - shift)); }
  if ((at >> 2u) < 0) { v = m0[0] << (32u - shift); }
  put(word, v);
}
"""
)
FILL = (
    _HEAD
    + "@group(0) @binding(1) var<uniform> p: Params;"
    + _TARGET.replace("TO", "m0")
    + "  put(word, p.source);\n}\n"
)


class Moved(NamedTuple):
    """A copy or a fill that wants a slot for its params."""

    text: str
    bindings: tuple[Binding, ...]
    params: bytes
    counts: tuple[int, int, int]


def copy(
    buffers: Buffers, to: int, source: int, size: int, *, in_pass: bool = False
) -> Iterator[Moved | Transfer]:
    """Bytes from one address to another; within a compute pass, if they must be."""
    (number, at), (read, start) = placed(to), placed(source)
    is_whole = not any(n % WORD_BYTES for n in (to, source, size))
    if is_whole and number != read and size >= TRANSFER_BYTES and not in_pass:
        yield Transfer(buffers[read], start, buffers[number], at, size)
        return
    for first in range(0, size, PIECE_BYTES):
        count = min(PIECE_BYTES, size - first)
        given, begin = _bound(buffers, source + first, count)
        written, end = _bound(buffers, to + first, count)
        yield _moved(COPY, (given, written), begin, end, count)


def fill(buffers: Buffers, to: int, size: int, byte: int) -> Iterator[Moved]:
    """The same byte everywhere."""
    for first in range(0, size, PIECE_BYTES):
        count = min(PIECE_BYTES, size - first)
        written, at = _bound(buffers, to + first, count)
        yield _moved(FILL, (written,), byte * 0x01010101, at, count)


def _bound(buffers: Buffers, address: int, size: int) -> tuple[Binding, int]:
    """The binding that has these bytes, and the first of them in it."""
    number, offset = placed(address)
    start, end = offset // ALIGN * ALIGN, offset + size
    if end > buffers.size(number):
        raise Error(f"{size:,} bytes at address {address:#x} go beyond their memory.")
    stop = min(-(-end // ALIGN) * ALIGN, buffers.size(number))
    return Binding(number, start, stop - start), offset - start


def _moved(text: str, bindings: tuple[Binding, ...], source: int, to: int, size: int) -> Moved:
    words = (to + size - 1) // WORD_BYTES - to // WORD_BYTES + 1
    counts = dispatch((-(-words // THREADS), 1, 1))
    return Moved(text, bindings, struct.pack("<4I", source, to, size, counts[0]), counts)
