"""The files of a model: its own, and those beside it that hold its tensors.

A file beside a model is opened only inside the model's folder, or in the cache that the model's own
file is linked from: links are resolved first, and where they lead is opened part by part without
following any. What is asked of a file is compared with its length. Bytes are copied out of files,
tensor by tensor where those are beside the model: what happens to a file later changes nothing.
"""

from __future__ import annotations

import bisect
import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from rlx.core.errors import Error, GraphError
from rlx.core.files import NO_LINKS, NOT_WAITING, READING, HeldFile, opened

MAX_PATH = 4096
READABLE = stat.S_IRUSR | stat.S_IRGRP | stat.S_IROTH
CHUNK, MAX_THREADS = 4 << 20, 4
"""What a thread hashes at a time, and how many do."""
Bytes = np.ndarray[Any, np.dtype[np.uint8]]
Range = tuple[int, int]
"""Where bytes begin and end."""


@dataclass(frozen=True, slots=True)
class ModelFile:
    """A model's own file, all of it."""

    path: Path
    data: memoryview
    is_on_disk: bool = True
    """Are there files beside it, in which its tensors may be?"""

    @property
    def folder(self) -> Path | None:
        return self.path.parent if self.is_on_disk else None

    def beside(self) -> Beside:
        """The files beside it, none of which is open yet."""
        return Beside(self.folder, self.path if self.is_on_disk else None)

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> ModelFile:
        return cls(Path(path), opened(path)[:])

    def digest(self) -> str:
        """A hash of the hashes of its chunks, computed by threads in parallel."""
        chunks = [self.data[i : i + CHUNK] for i in range(0, len(self.data), CHUNK)]
        if len(chunks) < 2:
            return _joined(map(_hashed, chunks))
        try:
            with ThreadPoolExecutor(min(len(chunks), os.cpu_count() or 1, MAX_THREADS)) as threads:
                return _joined(threads.map(_hashed, chunks))
        except RuntimeError:  # no thread can be started
            return _joined(map(_hashed, chunks))


def _hashed(chunk: memoryview) -> bytes:
    """Processors have instructions for this one."""
    return sha256(chunk).digest()


def _joined(hashes: Iterable[bytes]) -> str:
    return sha256(b"".join(hashes)).hexdigest()


@dataclass(slots=True)
class Beside:
    """The files in a model's folder that hold its tensors, each opened once."""

    folder: Path | None
    model: Path | None = None
    """The model's own file, where it is one."""
    opened: dict[str, Opened] = field(default_factory=dict[str, "Opened"])

    def bytes_of(self, entries: Any, size: int, what: str) -> Bytes:
        """What a tensor's `external_data` means; keys that ONNX does not define are ignored."""
        keys: Mapping[str, str] = {e.key: e.value for e in entries}
        offset = _whole(keys.get("offset", ""), what)
        length = _whole(keys["length"], what) if "length" in keys else size
        if length != size:
            raise GraphError(f"{what}: it has {length} bytes for a shape that takes {size}")
        return self.range_of(keys.get("location", ""), (offset, offset + length), what)

    def range_of(self, location: str, wanted: Range, what: str) -> Bytes:
        """Some bytes of a file; parts of others' bytes are no tensor's."""
        file = self.file(location, what)
        start, end = wanted
        if end > len(file.held):
            raise GraphError(
                f"{what}: bytes {start} to {end} of {_short(location)}, which has {len(file.held)}"
            )
        if start == end:
            return np.empty(0, np.uint8)
        file.claim(wanted, what)
        return file.bytes_of(wanted)

    def file(self, location: str, what: str) -> Opened:
        if self.folder is None:
            raise Error(
                f"{what} is in another file, but the model was not read from one. Load it by its "
                "path."
            )
        if location not in self.opened:
            fd = open_inside(self.folder, location, what, self.model)
            try:
                self.opened[location] = Opened(HeldFile(location, fd))
            except (OSError, ValueError) as error:
                raise Error(f"{what}: {_short(location)} cannot be read: {error}") from None
            finally:
                os.close(fd)
        return self.opened[location]

    def stamps(self) -> dict[str, list[int]]:
        """By which one can see later that no file has changed."""
        return {name: file.held.stamp for name, file in self.opened.items()}


@dataclass(slots=True)
class Opened:
    """A file beside a model, which of its bytes belong to a tensor, and those that were read."""

    held: HeldFile
    claimed: list[Range] = field(default_factory=list[Range])
    """In order, and disjoint."""
    tensors: dict[Range, Bytes] = field(default_factory=dict[Range, Bytes])

    def bytes_of(self, wanted: Range) -> Bytes:
        """Those of one tensor; tied weights share them."""
        if wanted not in self.tensors:
            self.tensors[wanted] = np.frombuffer(self.held.read(*wanted), np.uint8)
        return self.tensors[wanted]

    def claim(self, wanted: Range, what: str) -> None:
        """Tensors may share all of their bytes, as tied weights do, but not some."""
        at = bisect.bisect_left(self.claimed, wanted)
        if at < len(self.claimed) and self.claimed[at] == wanted:
            return
        after = at < len(self.claimed) and self.claimed[at][0] < wanted[1]
        before = at > 0 and self.claimed[at - 1][1] > wanted[0]
        if after or before:
            raise GraphError(f"{what}: its bytes overlap those of another tensor")
        self.claimed.insert(at, wanted)


def open_inside(folder: Path, path: str, what: str, model: Path | None = None) -> int:
    """A file of the folder, of one inside it, or of the cache that the model is linked from.

    Names are taken as they are written: percent signs and look-alikes are letters like others.
    """
    parts = path.split("/")
    if len(path) > MAX_PATH or "\\" in path or any(p in ("", ".", "..") for p in parts):
        raise Error(f"{what}: {_short(path)} is not a file inside the model's folder")
    try:
        root, rest = _resolved(folder, parts, model)
        has_inner = os.open in os.supports_dir_fd
        here = _walked(root, rest) if has_inner else _by_path(root, rest)
        own = None if model is None else os.stat(model)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise Error(f"{what}: {_short(path)} cannot be opened: {reason}") from None
    reason = _why_refused(os.fstat(here), own)
    if reason is not None:
        os.close(here)
        raise Error(f"{what}: {_short(path)} {reason}")
    return here


def _resolved(folder: Path, parts: Sequence[str], model: Path | None) -> tuple[Path, Sequence[str]]:
    """Where a path leads through links: one of the folders that the model's files may be in, and
    the way from there, on which there is no link."""
    own = Path(os.path.realpath(folder))
    target = Path(os.path.realpath(own.joinpath(*parts)))
    for root in (own, *_cache_folders(model)):
        if target != root and target.is_relative_to(root):
            return root, target.relative_to(root).parts
    raise ValueError(
        f"it is a link to {_short(str(target))}, which is neither in the model's folder nor in the "
        "cache that the model is linked from. Copy the file into the model's folder"
    )


def _cache_folders(model: Path | None) -> Iterator[Path]:
    """The folder of the file that the model is a link to, and Hugging Face's of all files of a
    repository, where the model is in a snapshot of it."""
    if model is None:
        return
    yield Path(os.path.realpath(model)).parent
    for folder in Path(os.path.abspath(model)).parents:
        if folder.name == "snapshots" and (folder.parent / "blobs").is_dir():
            yield Path(os.path.realpath(folder.parent / "blobs"))


def _why_refused(info: os.stat_result, own: os.stat_result | None) -> str | None:
    """Why a file may not be read as part of the model. A hard link has no target to look at: that
    of an installer or a cache can be read by whoever can read the model, and one to a secret
    cannot."""
    if not stat.S_ISREG(info.st_mode):
        return "is not a plain file (it is a folder, a pipe or a device)"
    if info.st_nlink == 1:
        return None
    if own is None or own.st_uid != info.st_uid or own.st_mode & ~info.st_mode & READABLE:
        return "is a hard link to a file that others own, or fewer can read than the model"
    return None


def _walked(folder: Path, parts: Sequence[str]) -> int:
    """Folder by folder, each opened inside the last: what is renamed meanwhile changes nothing."""
    flags = READING | NO_LINKS | NOT_WAITING
    here = os.open(folder, READING | os.O_DIRECTORY)
    for part in parts[:-1]:
        here = _step(here, part, flags | os.O_DIRECTORY)
    return _step(here, parts[-1], flags)


def _by_path(folder: Path, parts: Sequence[str]) -> int:
    """By its path, on systems that open nothing inside an open folder; no part may be a link, a
    drive or a stream."""
    path = folder
    for part in parts:
        path = path / part
        if ":" in part or path.is_symlink() or path.resolve().parent != path.parent.resolve():
            raise ValueError("it is a link")
    return os.open(path, READING | NO_LINKS | NOT_WAITING)


def _step(here: int, part: str, flags: int) -> int:
    try:
        return os.open(part, flags, dir_fd=here)
    finally:
        os.close(here)


def _short(text: str) -> str:
    return repr(text[:200])


def _whole(text: str, what: str) -> int:
    if not text:
        return 0
    if not re.fullmatch(r"[0-9]{1,18}", text, re.ASCII):
        raise GraphError(f"{what}: {text[:40]!r} is not a number of bytes")
    return int(text)
