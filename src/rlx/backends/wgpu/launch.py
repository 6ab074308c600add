"""Launches: which part of which GPU buffer each binding is, and the params.

A binding begins at a multiple of what every adapter aligns bindings to, and holds all that the
kernel may touch. Where a kernel has more buffers than an adapter has bindings, those of one GPU
buffer share bindings.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from rlx.backends.gpu.device import ALIGN, ByteSpan, Code
from rlx.backends.wgpu.memory import Buffers, placed
from rlx.backends.wgpu.wgsl.module import Module, dispatch
from rlx.core.dim import evaluate
from rlx.core.errors import Error, UnsupportedError

WORD = 0xFFFFFFFF


class Binding(NamedTuple):
    """Bytes of a GPU buffer."""

    number: int
    start: int
    size: int


@dataclass(frozen=True, slots=True, eq=False)
class Shader:
    """A module, and its pipelines by the bindings of its buffers."""

    module: Module
    pipelines: dict[tuple[int, ...], Any] = field(default_factory=dict[tuple[int, ...], Any])


class Prepared(NamedTuple):
    """A launch that wants slots for its params."""

    shader: Shader
    indices: tuple[int, ...]
    """The binding of each buffer."""
    bindings: tuple[Binding, ...]
    params: bytes
    counts: tuple[int, int, int]


class Limits(NamedTuple):
    """Of bindings, by the adapter."""

    max_bytes: int
    max_count: int

    @classmethod
    def of(cls, limits: Mapping[str, int]) -> Limits:
        return cls(
            limits["max-storage-buffer-binding-size"] // ALIGN * ALIGN,
            limits["max-storage-buffers-per-shader-stage"],
        )


class _Reach(NamedTuple):
    """What a kernel may touch of a buffer."""

    number: int
    offset: int
    """Of the address that it is given."""
    low: int
    high: int


def prepare(
    buffers: Buffers,
    limits: Limits,
    shader: Shader,
    code: Code,
    addresses: Sequence[int],
    sizes: Mapping[str, int],
    spans: Sequence[ByteSpan],
) -> Prepared | None:
    """The launch of a kernel on buffers at these addresses; None where its grid is empty."""
    x, y, z = (evaluate(d, sizes) for d in code.grid)
    if not x * y * z:
        return None
    _check(code, addresses)
    given = spans or [None] * len(addresses)
    reaches = [_reach(buffers, a, s) for a, s in zip(addresses, given, strict=True)]
    indices, bindings = _bound(buffers, limits, code, reaches)
    firsts = [
        (r.offset - bindings[i].start) // argument.dtype.itemsize & WORD
        for r, i, argument in zip(reaches, indices, shader.module.buffers)
    ]
    scalars = [evaluate(dim, sizes) for _, dim in code.scalars]
    params = shader.module.params(firsts, scalars, (x, y, z))
    return Prepared(shader, indices, bindings, params, dispatch((x, y, z)))


def _check(code: Code, addresses: Sequence[int]) -> None:
    if len(addresses) != len(code.buffers):
        raise Error(
            f"kernel {code.name} has {len(code.buffers)} buffers and was given {len(addresses)}."
        )


def _reach(buffers: Buffers, address: int, span: ByteSpan | None) -> _Reach:
    """As it is said, or up to the end of the memory."""
    number, offset = placed(address)
    if span is None:
        return _Reach(number, offset, offset, buffers.size(number))
    low, high = span
    return _Reach(number, offset, offset + low, offset + high)


def _bound(
    buffers: Buffers, limits: Limits, code: Code, reaches: Sequence[_Reach]
) -> tuple[tuple[int, ...], tuple[Binding, ...]]:
    """The binding of each buffer, and all bindings."""
    if len(reaches) <= limits.max_count:
        groups = [[i] for i in range(len(reaches))]
    else:
        groups = _merged(reaches, limits.max_bytes)
    if len(groups) > limits.max_count:
        raise UnsupportedError(
            f"kernel {code.name} has {len(reaches)} buffers in {len(groups)} places, and the "
            f"adapter has {limits.max_count} bindings (maxStorageBuffersPerShaderStage). Use "
            "another adapter or target."
        )
    indices = [0] * len(reaches)
    bindings = list[Binding]()
    for k, group in enumerate(groups):
        for i in group:
            indices[i] = k
        bindings.append(_binding(buffers, limits, code, [reaches[i] for i in group]))
    return tuple(indices), tuple(bindings)


def _merged(reaches: Sequence[_Reach], max_bytes: int) -> list[list[int]]:
    """As few groups as there can be, each of one GPU buffer."""
    groups = list[list[int]]()
    start = 0
    for i in sorted(range(len(reaches)), key=lambda i: reaches[i]):
        reach = reaches[i]
        last = reaches[groups[-1][-1]] if groups else None
        if last and last.number == reach.number and reach.high - start <= max_bytes - ALIGN:
            groups[-1].append(i)
        else:
            groups.append([i])
            start = reach.low // ALIGN * ALIGN
    return groups


def _binding(buffers: Buffers, limits: Limits, code: Code, reaches: Sequence[_Reach]) -> Binding:
    """From the first byte to the last that any of them may touch."""
    number = reaches[0].number
    start = min(r.low for r in reaches) // ALIGN * ALIGN
    end = min(max(r.high for r in reaches), buffers.size(number))
    size = max(ALIGN, -(-(end - start) // ALIGN) * ALIGN)
    if size > limits.max_bytes:
        raise UnsupportedError(
            f"kernel {code.name} needs a buffer of {end - start:,} bytes, and a binding of the "
            f"adapter has at most {limits.max_bytes:,} (maxStorageBufferBindingSize). Split the "
            "value or the batch, or use another adapter or target."
        )
    return Binding(number, start, min(size, buffers.size(number) - start))
