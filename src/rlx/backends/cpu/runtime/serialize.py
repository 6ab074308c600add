"""Programs as sections of a file: what opens without LLVM, and without the plan."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from rlx.backends.cpu.program.artefact import Artefact, Constant, HostStep, PrologueReads
from rlx.backends.cpu.runtime.blob import Blob
from rlx.core.dim import DimLike
from rlx.core.errors import Error
from rlx.core.sections import Bytes, Sections
from rlx.core.shape import Shape
from rlx.ir.json_form import (
    Decoder,
    dim_json,
    dims_of,
    interface_json,
    shape_json,
    symbols_json,
    text,
)
from rlx.ops import custom_ops as custom


def packed(artefact: Artefact) -> tuple[dict[str, Any], dict[str, Bytes]]:
    """A program as JSON and sections of bytes."""
    head = {
        "isa": artefact.isa,
        "names": symbols_json(artefact.symbols, [*dims_of(artefact.interface), *_dims(artefact)]),
        "symbols": [s.name for s in artefact.symbols],
        "interface": interface_json(artefact.interface),
        "constants": [
            [dim_json(c.offset), *shape_json(Shape(c.value.shape, c.value.dtype))]
            for c in artefact.constants
        ],
        "failures": artefact.failures,
        "hosts": [[number, *_host_json(step)] for number, step in artefact.hosts.items()],
        "prologue": [[sorted(s.params), sorted(s.steps)] for s in artefact.prologue],
        "call_params": sorted(artefact.call_params),
        "panels_at": dim_json(artefact.packed_at),
    }
    raw = b"".join(np.ascontiguousarray(c.value).tobytes() for c in artefact.constants)
    return head, {"code": artefact.blob.to_bytes(), "constants": raw}


def _dims(artefact: Artefact) -> list[DimLike]:
    hosts = [s for h in artefact.hosts.values() for s in (*h.operands, *h.results)]
    offsets = [artefact.packed_at, *(c.offset for c in artefact.constants)]
    return [*offsets, *(d for s in hosts for d in s.dims)]


def _host_json(step: HostStep) -> list[Any]:
    shapes = [[shape_json(s) for s in each] for each in (step.operands, step.results)]
    return [step.name, step.options, step.label, *shapes]


def opened(head: dict[str, Any], file: Sections) -> Artefact:
    """The program in a file."""
    return file.decoded(lambda: _opened(head, file))


def _opened(head: dict[str, Any], file: Sections) -> Artefact:
    decode = Decoder(head["names"])
    return Artefact(
        blob=Blob.from_bytes(bytes(file.section("code"))),
        isa=text(head["isa"]),
        symbols=tuple(map(decode.symbol, head["symbols"])),
        constants=tuple(_constants(decode, head["constants"], file.section("constants"))),
        failures=tuple((text(label), tuple(map(text, texts))) for label, texts in head["failures"]),
        hosts={int(number): _host(decode, *step) for number, *step in head["hosts"]},
        prologue=tuple(_reads(*each) for each in head["prologue"]),
        call_params=frozenset(map(int, head["call_params"])),
        packed_at=decode.dim(head["panels_at"]),
        interface=decode.interface(head["interface"]),
    )


def _reads(params: Any, steps: Any) -> PrologueReads:
    return PrologueReads(frozenset(map(int, params)), frozenset(map(int, steps)))


def _constants(decode: Decoder, held: Any, raw: memoryview) -> Iterator[Constant]:
    """Arrays over the bytes of the file, one behind the other."""
    at = 0
    for offset, *shape in held:
        kind = decode.shape(shape)
        size = int(kind.size_bytes)
        if size > len(raw) - at:
            raise Error("the constants of the program are cut short. Make it again.")
        flat = np.frombuffer(raw[at : at + size], np.uint8).view(kind.dtype.numpy)
        yield Constant(decode.dim(offset), flat.reshape(kind.static_dims))
        at += size


def _host(
    decode: Decoder, name: str, options: str, label: str, operands: Any, results: Any
) -> HostStep:
    custom.registered(text(name))
    shapes = [tuple(map(decode.shape, each)) for each in (operands, results)]
    return HostStep(name, text(options), text(label), *shapes)
