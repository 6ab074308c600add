"""On-disk cache of compiled programs, content-addressed by the hash of all inputs.

An entry is written under another name and then renamed, so that a reader meets all of it or
nothing; whatever its checksum does not confirm is removed, and made again. What is in the folder
is run, so the folder must be the user's own, and nobody else's to write to.
"""

from __future__ import annotations

import contextlib
import functools
import os
import secrets
import stat
import time
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from hashlib import blake2b
from pathlib import Path
from typing import Any, TypeAlias

from rlx._version import __version__
from rlx.core.arguments import FLAG, NONE, PATH
from rlx.core.errors import Error
from rlx.core.files import NO_LINKS, READING, WRITING, HeldFile, path_of
from rlx.core.sections import Bytes, Sections, packed

MAX_BYTES = 2 << 30
_SUFFIX, _UNDER_WAY = ".rlx", ".tmp"
_STALE_SECONDS = 3600
"""A file that was not renamed by then belongs to a process that is gone."""
_MAX_NOTE_BYTES = 1 << 20
_FOREIGN = stat.S_IWGRP | stat.S_IWOTH

KIND = PATH | FLAG | NONE
CacheLike: TypeAlias = "str | os.PathLike[str] | Cache | bool | None"


@dataclass(frozen=True, slots=True)
class Entry:
    """A file of the cache, as far as its head tells; what is damaged has no kind."""

    key: str
    kind: str
    name: str
    size_bytes: int
    used: datetime


@dataclass(frozen=True, slots=True)
class Cache:
    """A folder of entries, the least lately used of which go when there are too many bytes.

    Any number of processes may use one folder. A cache that cannot be read or written is an
    empty one: nothing fails because of it.
    """

    folder: Path
    max_bytes: int = MAX_BYTES
    _state: dict[str, bool] = field(default_factory=dict[str, bool], repr=False, compare=False)

    @staticmethod
    def of(given: CacheLike, environment: Mapping[str, str]) -> Cache | None:
        """What a caller means by `cache=`: a folder, a Cache, False for none; None is the one
        that the environment names."""
        if isinstance(given, Cache):
            return given
        if given is False or (given is None and environment.get("RLX_CACHE") == "off"):
            return None
        KIND.check("cache", given)
        named = None if given is None or given is True else path_of(given)
        folder = named or _default_folder(environment)
        return None if folder is None else Cache(folder, _max_bytes(environment))

    # -- entries -------------------------------------------------------------------------------

    def get(self, key: str) -> Sections | None:
        """The entry of `key`, if there is one that can be trusted."""
        if not self._is_trusted():
            return None
        path = self._path(key)
        try:
            descriptor = os.open(path, READING | NO_LINKS)
        except OSError:
            return None
        try:
            seen = os.fstat(descriptor)
            if not _is_own(seen):
                return None
            found = self._opened(path, descriptor, key)
        finally:
            os.close(descriptor)
        if found is not None:  # by its time of access: who has the file open sees no change
            with contextlib.suppress(OSError):
                os.utime(path, ns=(time.time_ns(), seen.st_mtime_ns))
        return found

    def paths(self) -> list[Path]:
        """The files of all entries, good or not."""
        return list(self._files())

    def has(self, prefix: str) -> bool:
        """Is there an entry, good or not, whose key begins like this?"""
        return any(p.name.startswith(prefix) for p in self._files())

    def _opened(self, path: Path, descriptor: int, key: str) -> Sections | None:
        try:
            found = Sections.read(HeldFile(str(path), descriptor))
            if found.head.get("key") == key:
                return found
        except (Error, OSError, ValueError):
            pass
        self.drop(key)
        return None

    def put(self, key: str, head: Mapping[str, Any], sections: Mapping[str, Bytes]) -> None:
        """Keep an entry; where that fails, there is none."""
        size = sum(map(len, sections.values()))
        if size > self.max_bytes or not self._is_trusted():
            return
        if self._write(f"{key}{_SUFFIX}", packed({**head, "key": key}, sections)):
            self._make_room(key)

    def _write(self, name: str, parts: Iterable[Bytes]) -> bool:
        """A file of ours, all of it or nothing; False where that fails, as on a file system that
        is full or read-only."""
        beside = self.folder / f"{name}.{os.getpid()}.{secrets.token_hex(4)}{_UNDER_WAY}"
        try:
            with _created(beside) as file:
                file.writelines(parts)
            beside.replace(self.folder / name)
        except OSError:
            _removed(beside)
            return False
        return True

    def drop(self, key: str) -> None:
        """Forget an entry."""
        _removed(self._path(key))

    def clear(self) -> None:
        """Forget all of them."""
        for path in self._files():
            _removed(path)

    def entries(self) -> list[Entry]:
        """All that is kept, the latest used first."""
        found = [a for a in _aged(self._files()) if a[2].suffix == _SUFFIX]
        return [_entry(*a) for a in sorted(found, key=lambda a: (-a[0], a[2].name))]

    def fault_of(self, key: str) -> str | None:
        """What is wrong with an entry, all of which is read; None if nothing is."""
        try:
            file = Sections.open(self._path(key))
            for name in file.entries:
                file.section(name)
        except Error as error:
            return str(error)
        return None if file.head.get("key") == key else "it is another entry's file"

    @property
    def size_bytes(self) -> int:
        """The bytes of all entries."""
        return sum(size for _, size, _ in _aged(self._files()))

    def __len__(self) -> int:
        return sum(p.suffix == _SUFFIX for p in self._files())

    # -- what is kept beside them ----------------------------------------------------------------

    def note(self, name: str) -> str | None:
        """The text of a file of ours that is no entry, such as a calibration."""
        if not self._is_trusted():
            return None
        try:
            descriptor = os.open(os.path.join(self.folder, name), READING | NO_LINKS)
            with os.fdopen(descriptor, "rb") as file:
                return (
                    file.read(_MAX_NOTE_BYTES).decode() if _is_own(os.fstat(descriptor)) else None
                )
        except (OSError, UnicodeDecodeError):
            return None

    def write_note(self, name: str, text: str) -> bool:
        """Keep a text under a name, all of it or nothing; False where that fails."""
        return self._is_trusted() and self._write(name, [text.encode()])

    def drop_note(self, name: str) -> None:
        """Remove it, where it is there."""
        with contextlib.suppress(OSError):
            os.unlink(os.path.join(self.folder, name))

    # -- the folder ----------------------------------------------------------------------------

    def _path(self, key: str) -> Path:
        return self.folder / f"{key}{_SUFFIX}"

    def _files(self) -> list[Path]:
        try:
            every = list(self.folder.iterdir())
        except OSError:
            return []
        return [p for p in every if p.suffix in (_SUFFIX, _UNDER_WAY)]

    def _make_room(self, newest: str) -> None:
        """Remove what was used longest ago, and what nobody will finish."""
        aged = sorted(_aged(self._files()))
        excess = sum(size for _, size, _ in aged) - self.max_bytes
        for used, size, path in aged:
            if path.suffix == _UNDER_WAY:
                is_unwanted = time.time() - used > _STALE_SECONDS
            else:
                is_unwanted = excess > 0 and path.stem != newest
            if is_unwanted:
                excess -= size
                _removed(path)

    def _is_trusted(self) -> bool:
        if "trusted" not in self._state:
            self._state["trusted"] = self._is_safe()
        return self._state["trusted"]

    def _is_safe(self) -> bool:
        """Is the folder there, or can it be made, and is it ours alone to write to?"""
        with contextlib.suppress(OSError):
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            found = self.folder.stat()
        except OSError:
            return False
        if not stat.S_ISDIR(found.st_mode) or not _is_own(found):
            warnings.warn(
                f"{self.folder} is not used as a cache, as others may write to it. Make it a "
                "folder of your own with mode 0700, or set RLX_CACHE_DIR to one.",
                stacklevel=2,
            )
            return False
        return True


def _default_folder(environment: Mapping[str, str]) -> Path | None:
    """The folder that is named, or the one where caches belong; None where there is no home."""
    if environment.get("RLX_CACHE_DIR"):
        return Path(environment["RLX_CACHE_DIR"])
    if environment.get("XDG_CACHE_HOME"):
        return Path(environment["XDG_CACHE_HOME"], "rlx")
    try:
        return Path.home() / ".cache" / "rlx"
    except RuntimeError:
        return None


def _max_bytes(environment: Mapping[str, str]) -> int:
    given = environment.get("RLX_CACHE_BYTES", "")
    if given and not given.isdecimal():
        raise Error(f"RLX_CACHE_BYTES is {given!r}. Give a whole number of bytes.")
    return int(given) if given else MAX_BYTES


def _is_own(found: os.stat_result) -> bool:
    """Windows has no such owners and modes: there the access list of the user's profile holds."""
    if not hasattr(os, "geteuid"):
        return True
    return found.st_uid == os.geteuid() and not found.st_mode & _FOREIGN


def _removed(path: Path) -> None:
    """Whatever cannot be removed stays: a cache is no reason to fail."""
    with contextlib.suppress(OSError):
        path.unlink()


def _created(path: Path) -> Any:
    """A new file of the user's own, to write to."""
    flags = WRITING | os.O_CREAT | os.O_EXCL | NO_LINKS
    return os.fdopen(os.open(path, flags, 0o600), "wb")


def _aged(paths: Iterable[Path]) -> list[tuple[float, int, Path]]:
    """When each file was used, its bytes, and itself; another process may remove some meanwhile."""
    found: list[tuple[float, int, Path]] = []
    for path in paths:
        with contextlib.suppress(OSError):
            seen = path.stat()
            used = seen.st_mtime if path.suffix == _UNDER_WAY else seen.st_atime
            found.append((used, seen.st_size, path))
    return found


def _entry(used: float, size: int, path: Path) -> Entry:
    head: Mapping[str, Any] = {}
    with contextlib.suppress(Error):
        head = Sections.open(path).head
    kind, name = (str(head.get(k, "")) for k in ("kind", "name"))
    return Entry(path.stem, kind, name, size, datetime.fromtimestamp(used).astimezone())


def key_of(*parts: str) -> str:
    """A key of all of the parts, and of the code of rlx that makes something of them."""
    return blake2b(
        "\0".join([*parts, __version__, code_stamp()]).encode(), digest_size=16
    ).hexdigest()


@functools.cache
def code_stamp() -> str:
    """A stamp of the package's files: what an older or an edited one made is not met again."""
    root = Path(__file__).parents[1]
    h = blake2b(digest_size=16)
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(f for f in folders if f != "__pycache__")
        for name in sorted(n for n in names if n.endswith(".py")):
            seen = os.stat(os.path.join(folder, name))
            h.update(
                f"{folder[len(str(root)) :]}/{name} {seen.st_size} {seen.st_mtime_ns}".encode()
            )
    return h.hexdigest()
