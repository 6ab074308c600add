"""`.rlx` files: compiled programs, the records of their compiles and, unless left out, the weights.

A model that is another for other sizes or values of inputs has a program for each that it was
compiled for; weights that several of them have are in the file once.

Such a file is to be trusted like a program, for it is one: its machine code is run. What is checked
is that it is whole, that it was made by this version of rlx, and that this machine can run it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from rlx._version import __version__
from rlx.backends.base import Backend, Program
from rlx.backends.registry import device_variant, find_backend
from rlx.core.disk_cache import Cache
from rlx.core.errors import Error, UnsupportedError
from rlx.core.files import writing
from rlx.core.sections import Bytes, Sections, packed
from rlx.ir.interface import Leaf
from rlx.ir.json_form import Decoder, shape_json, symbols_json, text
from rlx.ops.op import Array
from rlx.runtime.compile_record import Record, recorded
from rlx.runtime.executable import Executable
from rlx.runtime.loaded_program import LoadedProgram
from rlx.runtime.variants import SavedVariants, Signature, Table, Variants
from rlx.runtime.weights import Pool

if TYPE_CHECKING:
    from rlx.pipeline import CompileResult

KIND = "program"
_PARAM = "param "


def parts(
    stored: tuple[dict[str, Any], dict[str, Bytes]],
    name: str,
    program: Program,
    record: CompileResult | Record,
) -> tuple[dict[str, Any], dict[str, Bytes]]:
    """The head and the sections of a program's file, of what its backend stores."""
    head, sections = stored
    data = record.data if isinstance(record, Record) else recorded(record)
    whole = {
        "kind": KIND, "name": program.interface.name, "version": __version__, "backend": name,
        "program": head,
    }  # fmt: skip
    return whole, {**sections, "record": data}


def write(
    path: str | os.PathLike[str],
    loaded: LoadedProgram | None,
    variants: Variants | None,
    *,
    weights: bool,
) -> None:
    """Write an executable to a file, all of it or nothing."""
    parts = contents(loaded, variants, weights=weights)
    with writing(path) as file:
        file.writelines(parts)


def contents(
    loaded: LoadedProgram | None, variants: Variants | None, *, weights: bool
) -> Iterator[Bytes]:
    """The bytes of an executable's file: its program, and those for some sizes and values."""
    writer = _Writer(weights)
    head: dict[str, Any] = {"kind": KIND, "version": __version__}
    if loaded is not None:
        head |= writer.program(loaded, "")
    if variants is not None:
        head |= writer.variants(variants, is_alone=loaded is None)
    return packed(head, writer.sections)


@dataclass(slots=True)
class _Writer:
    """The sections of a file as they are collected; weights that programs share are one."""

    weights: bool
    sections: dict[str, Bytes] = field(default_factory=dict[str, Bytes])
    _known: dict[tuple[Any, ...], str] = field(default_factory=dict[tuple[Any, ...], str])

    def program(self, loaded: LoadedProgram, prefix: str) -> dict[str, Any]:
        """The head of a program whose sections have these beginnings."""
        backend, program = loaded.backend, loaded.program
        files = backend.serializer()
        if files is None:
            raise UnsupportedError(
                f"{loaded.name}: target {backend.name!r} does not write its programs to files. "
                "Compile it with target='cpu', or write its plan: rlx.save(exe.lir, path)."
            )
        head, own = parts(files.stored(program), backend.name, program, loaded.record)
        self.sections |= {prefix + k: v for k, v in own.items()}
        if self.weights:
            loaded.ready()
            head["params"] = {k: [self._param(k, v), *v.shape] for k, v in loaded.given.items()}
        return head

    def _param(self, name: str, array: Array) -> str:
        """The section of a weight."""
        key = array.ctypes.data, array.dtype, array.shape
        if key not in self._known:
            self._known[key] = f"{_PARAM}{len(self._known)} {name}"
            self.sections[self._known[key]] = _raw(array)
        return self._known[key]

    def variants(self, variants: Variants, *, is_alone: bool) -> dict[str, Any]:
        """The head's part of programs for some sizes and values; none where there are none."""
        table = variants.table()
        if not table.programs and not is_alone:
            return {}
        if not table.programs:
            variants.last()
        each = [
            {"for": _signature_json(signature), **self.program(exe.loaded, f"{number}/")}
            for number, (signature, exe) in enumerate(table.programs.items())
        ]
        shapes = [dict(variants.inputs), dict(variants.outputs)]
        dims = [d for named in shapes for s in named.values() if s is not None for d in s.dims]
        inputs, outputs = (
            [[n, None if s is None else shape_json(s)] for n, s in named.items()]
            for named in shapes
        )
        return {
            "backend": variants.backend.name, "name": variants.name,
            "variants": {
                "static": table.static, "programs": each, "names": symbols_json((), dims),
                "inputs": inputs, "outputs": outputs,
            },
        }  # fmt: skip


def _signature_json(signature: Signature) -> list[Any]:
    return [
        [name, list(dims), *([rest[0], rest[1].hex()] if rest else [])]
        for name, dims, *rest in signature
    ]


def _raw(array: Array) -> memoryview:
    return array.reshape(-1).view(np.uint8).data


def read(
    path: str | os.PathLike[str], threads: int | None = None, device: int | None = None
) -> Executable:
    """The executable in a file."""
    return executable_of(Sections.open(path), threads, device)


def unpickled(data: bytes, threads: int | None) -> Executable:
    """The executable that was pickled as the bytes of its file."""
    return executable_of(Sections.of("the pickled program", memoryview(data)), threads)


def executable_of(
    file: Sections, threads: int | None = None, device: int | None = None
) -> Executable:
    """The executable in the sections of a file."""
    _check(file)
    found = find_backend(str(file.head.get("backend")))
    where = device_variant(found, "", device)
    backend = found.configured(where, threads, Cache.of(None, os.environ))
    reader = _Reader(file, backend)
    loaded = reader.program(file.head, "") if "program" in file.head else None
    held = file.head.get("variants")
    variants = None if held is None else file.decoded(lambda: reader.variants(held))
    if loaded is None and variants is None:
        raise Error(f"{file.name} holds no program that can be read. Make it again.")
    return Executable(loaded, variants)


@dataclass(frozen=True, slots=True)
class _Reader:
    """A file, and what runs its programs; weights that several have are read once."""

    file: Sections
    backend: Backend
    pool: Pool = field(default_factory=Pool)
    _arrays: dict[tuple[Any, ...], Array] = field(default_factory=dict[tuple[Any, ...], Array])

    def program(self, head: Mapping[str, Any], prefix: str) -> LoadedProgram:
        inside, files = self.file.under(prefix), self.backend.serializer()
        entry = head.get("program")
        if files is None or not isinstance(entry, dict):
            raise Error(f"{self.file.name} holds no program that can be read. Make it again.")
        program = files.opened(entry, inside)
        record = Record(bytes(inside.section("record")), self.backend.target(), self.file.name)
        loaded = LoadedProgram(record, program, self.backend, pool=self.pool)
        if "params" in head:
            loaded.adopt(self._params(head["params"], program))
        return loaded

    def _params(self, held: Any, program: Program) -> dict[str, Array]:
        """Arrays of the bytes of the file."""
        try:
            return {n.name: self._array(n, *held[n.name]) for n in program.interface.params}
        except (KeyError, TypeError, ValueError, OverflowError):
            raise Error(f"{self.file.name} lacks weights, or has others. Make it again.") from None

    def _array(self, leaf: Leaf, section: str, *dims: int) -> Array:
        key = section, leaf.shape.dtype, dims
        if key not in self._arrays:
            raw = np.frombuffer(self.file.section(section), np.uint8)
            array = raw.view(leaf.shape.dtype.numpy).reshape(dims)
            array.setflags(write=False)
            self._arrays[key] = array
        return self._arrays[key]

    def variants(self, held: Mapping[str, Any]) -> SavedVariants:
        decode = Decoder(held["names"])
        inputs, outputs = (
            {text(n): None if s is None else decode.shape(s) for n, s in held[kind]}
            for kind in ("inputs", "outputs")
        )
        programs = {
            _signature(each["for"]): Executable(self.program(each, f"{number}/"))
            for number, each in enumerate(held["programs"])
        }
        table = Table(tuple(map(text, held["static"])), programs)
        name = text(self.file.head["name"])
        return SavedVariants(name, self.backend, inputs, outputs, table)


def _signature(held: Any) -> Signature:
    return tuple(
        (text(name), tuple(map(int, dims)), *(_value(*rest) if rest else ()))
        for name, dims, *rest in held
    )


def _value(dtype: str, data: str) -> tuple[str, bytes]:
    return text(dtype), bytes.fromhex(data)


def _check(file: Sections) -> None:
    kind, version = file.head.get("kind"), file.head.get("version")
    if kind != KIND:
        raise Error(f"{file.name} is a file of rlx, but holds no program.")
    if version != __version__:
        raise Error(
            f"{file.name} was made by rlx {version!s:.20}, and this is {__version__}. "
            "Compile the model again."
        )
