"""Programs as sections of a file: what opens without a compiler, and without the plan.

Routines and codes are written field by field, under the names of their classes. Binaries and
constants lie one behind the other in a section of bytes, and are said by where they begin. Dims are
said by their number in a table: most recur, and each is put together once when a file is read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from rlx.backends.gpu.buckets import Buckets
from rlx.backends.gpu.device import Code
from rlx.backends.gpu.runtime.routine import (
    NOT_SAVED,
    Artefact,
    BranchStep,
    CallStep,
    ChoiceStep,
    Constant,
    CopyStep,
    HostStep,
    LaunchStep,
    Operand,
    Place,
    Routine,
    ScanStep,
    SizesStep,
    Span,
    WhileStep,
    as_bytes,
)
from rlx.core.dim import Dim, DimLike
from rlx.core.dtype import DType
from rlx.core.errors import Error
from rlx.core.layout import Layout
from rlx.core.sections import Bytes, Sections
from rlx.core.shape import Shape
from rlx.ir.json_form import Decoder, dim_json, dims_of, interface_json, shape_json, symbols_json
from rlx.ir.mir import Graph
from rlx.ops.op import Array
from rlx.program.tensor_map import OuterDim, TensorMap, WindowAxis

WRITTEN: Mapping[str, type[Any]] = {
    c.__name__: c
    for c in (
        Place, LaunchStep, CopyStep, Buckets, ChoiceStep, SizesStep, Operand, CallStep, BranchStep,
        WhileStep, ScanStep, Constant, Routine, Code, TensorMap, OuterDim, WindowAxis, Layout, Span,
    )
}  # fmt: skip
"""The classes whose values are their fields."""
_FIELDS = ("architecture", "main", "symbols", "capacities", "weight_bytes", "failures")


def packed(
    artefact: Artefact, *, has_spans: bool = False
) -> tuple[dict[str, Any], dict[str, Bytes]]:
    """A program as JSON and a section of bytes; with the spans of its launches, for devices that
    bind them."""
    writer = _Writer(has_spans)
    body = {name: writer.value(getattr(artefact, name)) for name in _FIELDS}
    body["codes"] = [writer.value(c) for c in artefact.codes]
    body["routines"] = [writer.value(r) for r in artefact.routines.values()]
    body["constants"] = [writer.value(c) for c in artefact.constants]
    dims = [*dims_of(artefact.interface), *writer.shape_dims, *writer.dims]
    head = {
        "names": symbols_json((), dims),
        "dims": list(map(dim_json, writer.dims)),
        "interface": interface_json(artefact.interface),
        "body": body,
    }
    return head, {"bytes": b"".join(writer.parts)}


@dataclass(slots=True)
class _Writer:
    """Values as JSON; their dims and bytes are collected."""

    has_spans: bool
    dims: dict[DimLike, int] = field(default_factory=dict[DimLike, int])
    """Their numbers."""
    shape_dims: list[DimLike] = field(default_factory=list[DimLike])
    parts: list[bytes] = field(default_factory=list[bytes])
    end: int = 0

    def value(self, value: Any) -> Any:
        match value:
            case None | bool() | int() | float() | str():
                return value
            case tuple() | list():
                return list(map(self.value, value))  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
            case Dim():
                return {"dim": self.dims.setdefault(value, len(self.dims))}
            case DType():
                return {"dtype": value.value}
            case Shape():
                self.shape_dims += value.dims
                return {"shape": shape_json(value)}
            case bytes():
                return {"bytes": self._placed(value)}
            case np.ndarray():
                kind = shape_json(Shape(value.shape, DType.of(value.dtype)))
                return {"array": [kind, *self._placed(as_bytes(value).tobytes())]}
            case HostStep():
                return {"HostStep": self._host(value)}
            case _:
                return {type(value).__name__: self._fields(value)}

    def _fields(self, value: Any) -> list[Any]:
        assert type(value).__name__ in WRITTEN, type(value)
        all_of_it = fields(value)
        kept = [f.name for f in all_of_it if self.has_spans or NOT_SAVED not in f.metadata]
        return [self.value(getattr(value, name)) for name in kept]

    def _placed(self, raw: bytes) -> list[int]:
        self.parts.append(raw)
        self.end += len(raw)
        return [self.end - len(raw), len(raw)]

    def _host(self, step: HostStep) -> list[Any]:
        """Its op and attributes as the text of a graph that has nothing else."""
        from rlx.ir.text import show

        graph = Graph("host")
        given = [graph.input(f"x{i}", o.shape) for i, o in enumerate(step.operands)]
        node = graph.node(step.op, given, step.attrs)
        items = range(len(node.shapes)) if node.has_items else ()
        graph.set_outputs([graph.node("item", (node,), {"index": i}) for i in items] or [node])
        rest = (step.label, step.operands, step.results, step.measured)
        return [show(graph), *map(self.value, rest)]


# -- reading --------------------------------------------------------------------------------------


def opened(head: dict[str, Any], file: Sections) -> Artefact:
    """The program in a file."""
    return file.decoded(lambda: _opened(head, file))


def _opened(head: dict[str, Any], file: Sections) -> Artefact:
    decode = Decoder(head["names"])
    dims = tuple(map(decode.dim, head["dims"]))
    reader, body = _Reader(decode, dims, file.section("bytes")), head["body"]
    plain = {name: reader.value(body[name]) for name in _FIELDS}
    routines: list[Routine] = [reader.value(r) for r in body["routines"]]
    return Artefact(
        codes=tuple(map(reader.value, body["codes"])),
        routines={r.name: r for r in routines},
        constants=tuple(map(reader.value, body["constants"])),
        interface=decode.interface(head["interface"]),
        **plain,
    )


@dataclass(frozen=True, slots=True)
class _Reader:
    decode: Decoder
    dims: tuple[DimLike, ...]
    raw: memoryview

    def value(self, value: Any) -> Any:
        if isinstance(value, list):
            return tuple(map(self.value, value))  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
        if not isinstance(value, dict):
            return value
        ((kind, held),) = value.items()  # pyright: ignore[reportUnknownVariableType]
        match kind:
            case "dim":
                return self.dims[held]  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
            case "dtype":
                return DType(held)
            case "shape":
                return self.decode.shape(held)
            case "bytes":
                return self._bytes(*held)  # pyright: ignore[reportUnknownArgumentType]
            case "array":
                return self._array(*held)  # pyright: ignore[reportUnknownArgumentType]
            case "HostStep":
                return self._host(*held)  # pyright: ignore[reportUnknownArgumentType]
            case _:
                return WRITTEN[str(kind)](*map(self.value, held))  # pyright: ignore[reportUnknownArgumentType]

    def _bytes(self, start: int, size: int) -> bytes:
        if not 0 <= start <= start + size <= len(self.raw):
            raise Error("the code of the program is cut short. Make it again.")
        return bytes(self.raw[start : start + size])

    def _array(self, kind: Any, start: int, size: int) -> Array:
        shape = self.decode.shape(kind)
        flat = np.frombuffer(self._bytes(start, size), np.uint8).view(shape.dtype.numpy)
        return flat.reshape(shape.static_dims)

    def _host(self, graph: str, *rest: Any) -> HostStep:
        from rlx.ir.text import read

        label, operands, results, measured = map(self.value, rest)
        (node,) = (n for n in read(graph).order() if n.op not in ("input", "item"))
        return HostStep(label, node.op, node.attrs, operands, results, measured)
