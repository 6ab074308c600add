"""`.rlx` files: a compiled program, the record of its compile and, unless left out, its weights.

Such a file is to be trusted like a program, for it is one: its machine code is run. What is checked
is that it is whole, that it was made by this version of rlx, and that this machine can run it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from rlx._version import __version__
from rlx.backends.base import Backend, Program, Serializer, device_variant, find_backend
from rlx.core.disk_cache import Cache
from rlx.core.errors import Error, UnsupportedError
from rlx.core.files import writing
from rlx.core.sections import Bytes, Sections, packed
from rlx.ir.interface import Leaf
from rlx.ops.op import Array
from rlx.runtime.compile_record import Record, recorded
from rlx.runtime.executable import Executable

if TYPE_CHECKING:
    from rlx.pipeline import CompileResult

KIND = "program"
_PARAM = "param "


def parts(
    files: Serializer[Any], name: str, program: Program, record: CompileResult | Record
) -> tuple[dict[str, Any], dict[str, Bytes]]:
    """The head and the sections of a program's file."""
    head, sections = files.stored(program)
    data = record.data if isinstance(record, Record) else recorded(record)
    whole = {
        "kind": KIND, "name": program.interface.name, "version": __version__, "backend": name,
        "program": head,
    }  # fmt: skip
    return whole, {**sections, "record": data}


def write(
    path: str | os.PathLike[str],
    backend: Backend,
    program: Program,
    record: CompileResult | Record,
    params: Mapping[str, Array] | None,
) -> None:
    """Write a program to a file, all of it or nothing."""
    files = backend.serializer()
    if files is None:
        raise UnsupportedError(
            f"{program.interface.name}: target {backend.name!r} does not write its programs to "
            "files. Compile it with target='cpu', or write its plan: rlx.save(exe.lir, path)."
        )
    head, sections = parts(files, backend.name, program, record)
    if params is not None:
        head["params"] = {k: list(v.shape) for k, v in params.items()}
        sections |= {_PARAM + k: _raw(v) for k, v in params.items()}
    with writing(path) as file:
        file.writelines(packed(head, sections))


def _raw(array: Array) -> memoryview:
    return array.reshape(-1).view(np.uint8).data


def read(
    path: str | os.PathLike[str], threads: int | None = None, device: int | None = None
) -> Executable:
    """The executable in a file."""
    file = Sections.open(path)
    _check(file)
    found = find_backend(str(file.head.get("backend")))
    where = device_variant(found, "", device)
    backend = found.configured(where, threads, Cache.of(None, os.environ))
    head = file.head.get("program")
    files = backend.serializer()
    if files is None or not isinstance(head, dict):
        raise Error(f"{file.name} holds no program that can be read. Make it again.")
    program = files.opened(head, file)
    record = Record(bytes(file.section("record")), backend.target(), file.name)
    exe = Executable(record, program, backend=backend)
    if "params" in file.head:
        exe.adopt(_params(file, program))
    return exe


def _check(file: Sections) -> None:
    kind, version = file.head.get("kind"), file.head.get("version")
    if kind != KIND:
        raise Error(f"{file.name} is a file of rlx, but holds no program.")
    if version != __version__:
        raise Error(
            f"{file.name} was made by rlx {version!s:.20}, and this is {__version__}. "
            "Compile the model again."
        )


def _params(file: Sections, program: Program) -> dict[str, Array]:
    """Arrays of the bytes of the file."""
    dims: Any = file.head["params"]
    try:
        return {n.name: _array(file, n, dims[n.name]) for n in program.interface.params}
    except (KeyError, TypeError, ValueError, OverflowError):
        raise Error(f"{file.name} lacks weights, or has others. Make it again.") from None


def _array(file: Sections, leaf: Leaf, dims: Any) -> Array:
    raw = np.frombuffer(file.section(_PARAM + leaf.name), np.uint8)
    array = raw.view(leaf.shape.dtype.numpy).reshape(tuple(dims))
    array.setflags(write=False)
    return array
