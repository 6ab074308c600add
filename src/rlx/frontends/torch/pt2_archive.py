"""torch's `.pt2` archives without pickle: a zip of a program in JSON and the bytes of its tensors.

`torch.export.load` unpickles example inputs, objects and tensors of other classes, and opens
compiled libraries. Here entries are read as bytes, tensors are made of them, and torch builds the
graph of a program whose text was checked (`pt2_program.py`); what would have to be unpickled is
refused by name, or not read where no model needs it.
"""

from __future__ import annotations

import json
import re
import warnings
import zipfile
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from rlx.core.errors import Error
from rlx.core.files import opened, path_of
from rlx.core.memory_limits import require_memory
from rlx.frontends.torch.autocast import Region
from rlx.frontends.torch.model import TorchModel, imported_program
from rlx.frontends.torch.namespaces import torch
from rlx.frontends.torch.pt2_program import checked_program, guards_of

JSON_GROWTH = 16
"""Bytes that parsed JSON takes for one of its text, at most."""
PAYLOAD = re.compile(r"(weight|tensor)_\d{1,9}", re.ASCII)
SAVE_AGAIN = "Write it again by torch.export.save, with plain tensors, where you trust it."


def load_pt2(path: Any) -> TorchModel:
    """The model in a `.pt2` file that torch.export.save wrote. Nothing in it is run."""
    file = path_of(path)
    _require_torch(file)
    opened(file)  # a regular one
    try:
        with file.open("rb") as data, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            program, guards = _program(data)
    except Error as error:
        raise Error(f"{file} cannot be read as an exported program: {error}") from None
    except Exception as error:
        text = str(error).strip().partition("\n")[0][:400] or type(error).__name__
        raise Error(f"{file} cannot be read as an exported program: {text}") from None
    return imported_program(program, file.stem, {}, Region(None, False), guards)


def _require_torch(file: Path) -> None:
    try:
        _ = torch.export
    except ImportError:
        raise Error(
            f"{file} is read by torch, which is not installed: pip install 'rlx[torch]'."
        ) from None


def _program(data: BinaryIO) -> tuple[Any, tuple[str, ...]]:
    """torch's ExportedProgram of an archive, and its guards. Example inputs, which are pickled, are
    left out."""
    from torch._export.serde.serialize import (  # pyright: ignore[reportMissingImports]
        SerializedArtifact,
        deserialize,
    )

    with closing(zipfile.ZipFile(data)) as source:
        archive = Archive.of(source)
        found = archive.json("models/{}.json")
        program = json.dumps(checked_program(found)).encode()
        weights = archive.tensors("weights")
        constants = archive.tensors("constants")
    return deserialize(SerializedArtifact(program, weights, constants, b"")), guards_of(found)


@dataclass(frozen=True, slots=True)
class Archive:
    """The entries of an archive: all are below one folder, and one model is among them."""

    source: zipfile.ZipFile
    entries: Mapping[str, zipfile.ZipInfo]
    model: str

    @classmethod
    def of(cls, source: zipfile.ZipFile) -> Archive:
        entries = {i.filename.partition("/")[2]: i for i in source.infolist()}
        names = [m[1] for n in entries if (m := re.fullmatch(r"models/([^/]+)\.json", n))]
        if not names:
            raise Error(_why_no_program(entries))
        if len(names) > 1 and "model" not in names:
            raise Error(f"it holds {len(names)} programs. Save the one alone.")
        archive = cls(source, entries, "model" if "model" in names else names[0])
        if "byteorder" in entries and archive.read("byteorder") != b"little":
            raise Error("its tensors are not little-endian.")
        return archive

    def entry(self, name: str) -> zipfile.ZipInfo:
        """An entry whose bytes are in the file as they are: so they are no more than the file."""
        found = self.entries.get(name)
        if found is None:
            raise Error(f"it has no entry {name[:80]!r}.")
        if found.compress_type != zipfile.ZIP_STORED or found.file_size != found.compress_size:
            raise Error(f"its entry {name[:80]!r} is compressed, which torch's are not.")
        return found

    def read(self, name: str) -> bytes:
        entry = self.entry(name)
        require_memory(entry.file_size, f"{name[:80]!r}")
        return self.source.read(entry)

    def json(self, name: str) -> Any:
        """JSON of the model; `{}` in the name is the model's."""
        entry = name.format(self.model)
        require_memory(self.entry(entry).file_size * JSON_GROWTH, f"{entry[:80]!r}")
        try:
            return json.loads(self.read(entry))
        except (ValueError, RecursionError) as error:
            raise Error(f"its entry {entry[:80]!r} is not JSON: {str(error)[:80]}.") from None

    def tensors(self, kind: str) -> dict[str, Any]:
        """Tensors by name. Those that share memory share it here too."""
        if f"data/{kind}/{self.model}.pt" in self.entries:
            raise Error(f"its {kind} are pickled, as torch wrote them before 2.9. {SAVE_AGAIN}")
        config = _mapping(self.json(f"data/{kind}/{{}}_{kind}_config.json"), "config")
        payloads: dict[str, Any] = {}
        made: dict[str, Any] = {}
        for name, entry in config.items():
            path = _payload_path(name, entry)
            if path not in payloads:
                payloads[path] = self._bytes(f"data/{kind}/{path}")
            made[name] = _tensor(name, entry, payloads[path])
        return made

    def _bytes(self, name: str) -> Any:
        """A tensor of the bytes of an entry, in memory that is nobody else's."""
        size = self.entry(name).file_size
        require_memory(size, f"{name[:80]!r}")
        made = torch.empty(size, dtype=torch.uint8)
        view = memoryview(made.numpy())
        with self.source.open(self.entry(name)) as data:
            while len(view) and (count := data.readinto(view)):  # pyright: ignore[reportAttributeAccessIssue]
                view = view[count:]
        if len(view):
            raise Error(f"its entry {name[:80]!r} ends early.")
        return made


def _why_no_program(entries: Mapping[str, Any]) -> str:
    if any(n.startswith("data/aotinductor/") for n in entries):
        return "it holds machine code that AOTInductor compiled, and no program."
    if any("serialized_exported_program" in n for n in entries) or "" in entries:
        return f"it is of an older format, with pickled tensors. {SAVE_AGAIN}"
    return "it holds no program. Write it by torch.export.save."


def _payload_path(name: str, entry: Any) -> str:
    """Which entry has a tensor's bytes."""
    path = entry.get("path_name") if isinstance(entry, dict) else None
    is_plain = isinstance(path, str) and PAYLOAD.fullmatch(path) is not None
    if not is_plain or entry.get("use_pickle") is not False:
        raise Error(
            f"{name[:80]!r} is pickled: an object, or a tensor of a class of its own, which only "
            f"running code of the file would give. {SAVE_AGAIN}"
        )
    return str(path)


def _tensor(name: str, entry: Mapping[str, Any], payload: Any) -> Any:
    """The tensor of a payload's bytes that the entry describes."""
    from torch._export.serde.serialize import (  # pyright: ignore[reportMissingImports]
        _SERIALIZE_TO_TORCH_DTYPE as DTYPES,
    )

    meta = _mapping(entry, "tensor_meta")
    dtype = DTYPES.get(meta.get("dtype"))
    sizes, strides = (_numbers(name, meta.get(k)) for k in ("sizes", "strides"))
    (offset,) = _numbers(name, [meta.get("storage_offset")])
    if dtype is None:
        raise Error(f"{name[:80]!r} is of an unknown dtype.")
    count = 1
    for size in sizes:
        count *= size
    require_memory(count * dtype.itemsize, f"{name[:80]!r}")
    if payload.numel() < dtype.itemsize * min(count, 1):
        raise Error(f"{name[:80]!r} has no bytes in the file.")
    is_empty = payload.numel() == 0
    flat = torch.empty(0, dtype=dtype) if is_empty else payload.view(dtype)
    made = flat.new_empty(sizes) if is_empty else flat.as_strided(sizes, strides, offset)
    if entry.get("is_param") is not True:
        return made
    return torch.nn.Parameter(made, requires_grad=meta.get("requires_grad") is True)


def _numbers(name: str, values: Any) -> list[int]:
    """Sizes that are numbers."""
    found = [v.get("as_int") if isinstance(v, dict) else None for v in values or ()]
    numbers = [n for n in found if type(n) is int and 0 <= n < 1 << 62]
    if len(numbers) < len(found):
        raise Error(f"{name[:80]!r} has sizes that are no numbers.")
    return numbers


def _mapping(value: Any, key: str) -> Mapping[str, Any]:
    found = value.get(key) if isinstance(value, dict) else None
    if not isinstance(found, dict):
        raise Error(f"it lacks the field {key!r}.")
    return found
