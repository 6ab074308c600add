"""Writes to memory that the system counts: who writes, and where, and in which process."""

from __future__ import annotations

import mmap
import os
import threading
from pathlib import Path

import numpy as np
import pytest

from rlx.core import page_writes as module
from rlx.core.memory_digests import MemoryDigests
from rlx.core.page_writes import LEAST, Span, page_writes, whole_pages

needs_kernel = pytest.mark.skipif(
    module._kernel() is None, reason="the system does not count writes: Linux 6.7 does"
)
SIZE = 5 * LEAST


def memory() -> np.ndarray:
    """Private memory of its own pages, which are there."""
    held = np.frombuffer(mmap.mmap(-1, SIZE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS), np.uint8)
    held[:] = 1
    return held


def span(array: np.ndarray) -> Span:
    return array.ctypes.data, array.nbytes


@needs_kernel
def test_each_write_is_seen_once_asked_for() -> None:
    array = memory()
    pages = page_writes([span(array)])
    assert pages is not None
    assert not pages.any_written()
    for place in (0, SIZE // 2, SIZE - 1):
        array[place] += 1
        assert pages.any_written()
        assert pages.any_written()
        assert pages.clear()
        assert not pages.any_written()
    assert array.sum() == SIZE + 3


@needs_kernel
def test_writes_of_threads_and_of_the_system_are_seen(tmp_path: Path) -> None:
    array = memory()
    pages = page_writes([span(array)])
    assert pages is not None
    thread = threading.Thread(target=array.fill, args=(7,))
    thread.start()
    thread.join()
    assert pages.any_written()
    pages.clear()
    (tmp_path / "bytes").write_bytes(b"\2" * 100)
    with (tmp_path / "bytes").open("rb", buffering=0) as file:
        file.readinto(memoryview(array)[SIZE // 2 :][:100])
    assert pages.any_written()
    assert array[SIZE // 2] == 2


@needs_kernel
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")
def test_a_forked_process_reads_the_memory_itself() -> None:
    array = memory()
    digests = MemoryDigests([span(array)], counts_writes=True)
    assert digests.pages is not None
    child = os.fork()
    if child == 0:
        is_right = digests.pages.any_written() and digests.is_unchanged()
        array[SIZE // 2] += 1
        os._exit(0 if is_right and not digests.is_unchanged() else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert digests.is_unchanged()


@needs_kernel
def test_memory_that_others_change_is_read(tmp_path: Path) -> None:
    """Of a file, or shared with another process: what is written there is no write of ours."""
    path = tmp_path / "weights"
    path.write_bytes(bytes(SIZE))
    with path.open("r+b") as file:
        array = np.frombuffer(mmap.mmap(file.fileno(), SIZE), np.uint8)
    shared = np.frombuffer(mmap.mmap(-1, SIZE), np.uint8)
    assert page_writes([span(array)]) is None
    assert page_writes([span(shared)]) is None
    digests = MemoryDigests([span(array)], counts_writes=True)
    with path.open("r+b") as file:
        file.seek(SIZE // 2)
        file.write(b"\1")
    assert not digests.is_unchanged()


def test_bytes_beside_whole_pages_are_read() -> None:
    """The first and last bytes share their pages with other memory."""
    array, few = memory()[100:-100], np.ones(50, np.uint8)
    digests = MemoryDigests([span(array), span(few)], counts_writes=True)
    low, size = whole_pages(span(array))
    assert sum(digests.always[:, 1]) == array.nbytes - (0 if digests.pages is None else size) + 50
    for place in (0, low - array.ctypes.data - 1, low - array.ctypes.data, array.size - 1):
        array[place] += 1
        assert not digests.is_unchanged()
        array[place] -= 1
        assert digests.is_unchanged()


def test_without_the_system_all_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_kernel", lambda: None)
    array = memory()
    digests = MemoryDigests([span(array)], counts_writes=True)
    assert digests.pages is None
    assert digests.is_unchanged()
    array[3] += 1
    assert not digests.is_unchanged()
