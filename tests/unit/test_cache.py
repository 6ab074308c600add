"""The cache on disk: whole entries or none, of the user's own, and no more than fit."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlx
from rlx.backends.cpu.runtime.blob import Blob
from rlx.backends.cpu.runtime.code_cache import cached_blob
from rlx.core import disk_cache as caches
from rlx.core.disk_cache import MAX_BYTES, Cache, key_of
from rlx.core.sections import Sections, packed
from tests.patience import PATIENCE_S

HEAD = {"kind": "test", "list": [1, "é", None]}
PARTS: dict[str, bytes | memoryview] = {"a": b"x" * 1000, "empty": b"", "b": memoryview(b"yz")}


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "cache")


def path_of(cache: Cache, key: str) -> Path:
    return cache.folder / f"{key}.rlx"


# -- files -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("parts", [{}, {"one": b""}, PARTS])
def test_a_file_holds_what_was_put_in(parts: dict[str, Any], tmp_path: Path) -> None:
    whole = b"".join(packed(HEAD, parts))
    (tmp_path / "file").write_bytes(whole)
    for file in (Sections.of("file", memoryview(whole)), Sections.open(tmp_path / "file")):
        assert file.head == HEAD
        assert {k: bytes(file.section(k)) for k in file.entries} == {
            k: bytes(v) for k, v in parts.items()
        }
        assert "other" not in file
        with pytest.raises(rlx.Error, match="no section 'other'"):
            file.section("other")


def test_a_large_file_is_read_by_section_and_those_are_aligned(tmp_path: Path) -> None:
    parts = {"odd": b"z" * 77, "large": bytes(range(256)) * 8192}
    (tmp_path / "file").write_bytes(b"".join(packed(HEAD, parts)))
    file = Sections.open(tmp_path / "file")
    assert np.frombuffer(file.section("large"), np.uint8).ctypes.data % 64 == 0
    assert bytes(file.section("large")) == parts["large"]


def test_every_flipped_bit_and_every_cut_is_noticed() -> None:
    whole = b"".join(packed(HEAD, PARTS))
    places = Sections.of("", memoryview(whole)).entries
    padding = _padding(whole, places)
    for at in range(len(whole)):
        if at in padding:
            continue
        changed = bytearray(whole)
        changed[at] ^= 1 << at % 8
        with pytest.raises(rlx.Error):
            read_all(bytes(changed))
    for size in range(len(whole)):
        with pytest.raises(rlx.Error):
            Sections.of("file", memoryview(whole[:size]))


def read_all(whole: bytes) -> None:
    file = Sections.of("file", memoryview(whole))
    for name in PARTS:
        file.section(name)


def _padding(whole: bytes, places: dict[str, Any]) -> set[int]:
    """The bytes between parts, which mean nothing."""
    base = len(whole) - max(at + size for at, size, _ in places.values())
    used = [range(base + at, base + at + size) for at, size, _ in places.values()]
    head = range(40 + int.from_bytes(whole[16:24], "little"))
    return set(range(len(whole))).difference(head, *used)


@pytest.mark.parametrize(
    "places",
    [[0, 1 << 62, ""], [-1, 4, ""], [0, -4, ""], ["0", 4, ""], [0], None, {"a": 1}, [0, 4, None]],
)
def test_a_place_outside_the_file_is_an_error(places: Any) -> None:
    whole = Sections("file", {}, {"a": places}, memoryview(b"1234"))
    with pytest.raises(rlx.Error, match="file is damaged"):
        whole.section("a")


@pytest.mark.parametrize("manifest", [b"", b"[]", b"{}", b"\xff", b"[" * 100_000, b'{"head": 1}'])
def test_a_manifest_that_is_none(manifest: bytes) -> None:
    from rlx.core import sections

    lengths = sections._LENGTHS.pack(40 + len(manifest), len(manifest))
    digest = bytes.fromhex(sections._hash([lengths, manifest]))
    whole = sections.MAGIC + lengths + digest + manifest
    with pytest.raises(rlx.Error, match="file is damaged: its manifest"):
        Sections.of("file", memoryview(whole))


# -- entries ---------------------------------------------------------------------------------------


def test_what_is_put_is_found(cache: Cache) -> None:
    assert cache.get("k") is None
    cache.put("k", HEAD, PARTS)
    found = cache.get("k")
    assert found is not None
    assert found.head == {**HEAD, "key": "k"}
    assert bytes(found.section("a")) == PARTS["a"]
    assert cache.folder.stat().st_mode & 0o777 == 0o700
    assert path_of(cache, "k").stat().st_mode & 0o777 == 0o600
    assert [p.name for p in cache.folder.iterdir()] == ["k.rlx"]
    cache.drop("k")
    assert cache.get("k") is None
    assert len(cache) == 0


def test_an_entry_that_is_damaged_or_not_its_own_is_removed(cache: Cache) -> None:
    for damage in (b"", b"rlx", None):
        cache.put("k", HEAD, PARTS)
        whole = path_of(cache, "k").read_bytes()
        path_of(cache, "k").write_bytes(whole[:-1] if damage is None else damage)
        assert cache.get("k") is None
        assert not path_of(cache, "k").exists()
    cache.put("k", HEAD, PARTS)
    path_of(cache, "k").rename(path_of(cache, "other"))
    assert cache.get("other") is None
    assert len(cache) == 0


def test_the_least_lately_used_go_first(tmp_path: Path) -> None:
    size = 3000
    cache = Cache(tmp_path, max_bytes=4 * (size + 400))
    for i in range(4):
        cache.put(f"k{i}", {}, {"a": bytes(size)})
        os.utime(path_of(cache, f"k{i}"), (i, i))
    assert cache.get("k0") is not None
    cache.put("k4", {}, {"a": bytes(size)})
    assert [i for i in range(5) if cache.get(f"k{i}") is not None] == [0, 2, 3, 4]
    assert cache.size_bytes <= cache.max_bytes
    cache.put("large", {}, {"a": bytes(cache.max_bytes + 1)})
    assert cache.get("large") is None
    assert len(cache) == 4
    cache.clear()
    assert cache.size_bytes == 0


def test_large_entries_are_read_while_others_use_them(cache: Cache) -> None:
    """Sections of a large file are read when they are asked for; using it is no change of it."""
    cache.put("k", HEAD, {"a": bytes(3 << 20)})
    found = cache.get("k")
    assert found is not None
    assert cache.get("k") is not None
    assert len(found.section("a")) == 3 << 20


def test_what_a_process_left_half_written_goes(cache: Cache) -> None:
    cache.put("a", {}, {})
    old, new = cache.folder / "x.1.2.tmp", cache.folder / "y.1.2.tmp"
    other = cache.folder / "notes.txt"
    for path in (old, new, other):
        path.write_bytes(b"")
    os.utime(old, (0, time.time() - 7200))
    cache.put("b", {}, {})
    assert not old.exists()
    assert new.exists()
    assert other.exists()


@pytest.mark.parametrize("mode", [0o777, 0o720, 0o702])
def test_a_folder_that_others_write_to_is_not_used(tmp_path: Path, mode: int) -> None:
    folder = tmp_path / "open"
    folder.mkdir()
    folder.chmod(mode)
    cache = Cache(folder)
    with pytest.warns(UserWarning, match="others may write to it"):
        cache.put("k", HEAD, PARTS)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert cache.get("k") is None
    assert not list(folder.iterdir())


def test_a_foreign_folder_or_entry_is_not_used(
    cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache.put("k", HEAD, PARTS)
    path_of(cache, "k").chmod(0o666)
    assert cache.get("k") is None
    path_of(cache, "k").chmod(0o600)
    assert cache.get("k") is not None
    path_of(cache, "linked").symlink_to(path_of(cache, "k"))
    assert cache.get("linked") is None
    me = os.geteuid()
    monkeypatch.setattr(caches.os, "geteuid", lambda: me + 1)
    with pytest.warns(UserWarning, match="others may write"):
        assert Cache(cache.folder).get("k") is None


def test_a_cache_that_cannot_be_written_is_an_empty_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    beside = Cache(tmp_path / "file" / "cache")
    beside.put("k", HEAD, PARTS)
    assert beside.get("k") is None

    def refuse(*_: Any, **__: Any) -> Any:
        raise OSError(30, "Read-only file system")

    cache = Cache(tmp_path / "cache", max_bytes=2000)
    cache.put("k", HEAD, PARTS)
    with monkeypatch.context() as patched:  # what the system answers there, also for no file
        patched.setattr(caches, "_created", refuse)
        patched.setattr(caches.os, "utime", refuse)
        patched.setattr(Path, "unlink", refuse)
        cache.put("other", HEAD, PARTS)
        assert not cache.write_note("note", "text")
        assert cache.get("k") is not None
        assert len(cache) == 1
        cache.drop("k")
        cache.clear()
        cache._make_room("other")
        assert compiled_in(cache)(np.zeros(3, np.float32)).tolist() == [1, 1, 1]


def compiled_in(cache: Cache) -> rlx.Executable:
    g = rlx.Graph("g")
    g.set_outputs([g.exp(g.input("x", rlx.Shape([3])))])
    return rlx.compile(g, "cpu", cache=cache)


def test_what_a_caller_means(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = str(tmp_path)
    own = Cache(tmp_path, 5)
    assert Cache.of(own, {"RLX_CACHE": "off"}) is own
    assert Cache.of(False, {"RLX_CACHE_DIR": folder}) is None
    assert Cache.of(None, {"RLX_CACHE_DIR": folder, "RLX_CACHE": "off"}) is None
    assert Cache.of(None, {"RLX_CACHE_DIR": folder}) == Cache(tmp_path, MAX_BYTES)
    assert Cache.of(folder, {"RLX_CACHE": "off", "RLX_CACHE_BYTES": "7"}) == Cache(tmp_path, 7)
    assert Cache.of(None, {"XDG_CACHE_HOME": folder}) == Cache(tmp_path / "rlx")
    with pytest.raises(rlx.Error, match="RLX_CACHE_BYTES is '2G'"):
        Cache.of(None, {"RLX_CACHE_DIR": folder, "RLX_CACHE_BYTES": "2G"})

    def homeless() -> Path:
        raise RuntimeError("no home")

    monkeypatch.setattr(Path, "home", homeless)
    assert Cache.of(None, {}) is None


def test_keys_differ_by_part_and_by_the_code_of_rlx(monkeypatch: pytest.MonkeyPatch) -> None:
    assert key_of("a", "b") == key_of("a", "b")
    assert len({key_of("a", "b"), key_of("ab"), key_of("b", "a")}) == 3
    before = key_of("a")
    monkeypatch.setattr(caches, "code_stamp", lambda: "edited")
    assert key_of("a") != before


def test_a_blob_is_made_once(cache: Cache) -> None:
    made: list[Blob] = []

    def make() -> Blob:
        made.append(Blob(b"\xc3" * 4096, {"f": 0}, "x86_64"))
        return made[-1]

    assert [cached_blob("k", make, cache) for _ in range(3)] == made * 3
    assert len(made) == 1
    entry = next(cache.folder.iterdir())
    whole = bytearray(entry.read_bytes())
    whole[-9] ^= 1
    entry.write_bytes(whole)
    assert cached_blob("k", make, cache) == made[0]
    assert len(made) == 2
    assert cached_blob("k", make, None) == made[0]
    assert len(made) == 3


WRITER = """
import sys
from pathlib import Path
from rlx.core.disk_cache import Cache
cache, me = Cache(Path(sys.argv[1]), 40_000), int(sys.argv[2])
for turn in range(120):
    key = f"k{(turn * 7 + me) % 9}"
    found = cache.get(key)
    if found is not None:
        part = bytes(found.section("a"))
        assert part == key.encode() * (len(part) // 2), key
        assert found.head["key"] == key
    cache.put(key, {}, {"a": key.encode() * (500 * (1 + turn % 8))})
"""


def test_many_processes_share_a_folder(tmp_path: Path) -> None:
    started = [
        subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path), str(i)]) for i in range(4)
    ]
    assert [p.wait(PATIENCE_S) for p in started] == [0] * 4
    cache = Cache(tmp_path, 40_000)
    assert 0 < cache.size_bytes <= 40_000
    assert not list(tmp_path.glob("*.tmp"))
