"""Text of SIMT programs: complete, deterministic, and read back by `parse.py`.

program scale
  grid ((n + 255)//256), 1, 1
  block 256
  dim n in 0..
  buffer x f32 read
  buffer y f32 write
  scalar %0: i32 n = n
body
  %1: i32 = position() of=block dim=0
  …
  if(%6)
    region
      %7: f32 = load(%5) buffer=x hint=
      …
    region
end
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from rlx.core.dim import Dim, DimLike, symbols_of
from rlx.program.nodes import Node, Region, Value
from rlx.program.program import Program

INDENT = "  "


def text(program: Program) -> str:
    """The whole program."""
    number: dict[Value, int] = {}
    head = [f"{INDENT}{line}" for line in _head(program, number)]
    body = _region(program.body, number, 1)
    return "\n".join([f"program {program.name}", *head, "body", *body, "end", ""])


def mnemonic(kind: type[Node]) -> str:
    """The class name in lower case: SharedLoad is shared_load."""
    return re.sub(r"(?<=.)([A-Z])", r"_\1", kind.__name__).lower()


def described(node: Node) -> str:
    """A node in a message, without the numbers of its values."""
    extra = [f"{k}={v}" for k, v in node.attrs.items() if v not in ("", False)]
    return " ".join([mnemonic(type(node)), *extra])


def _head(program: Program, number: dict[Value, int]) -> Iterator[str]:
    yield from (_dim(d) for d in symbols_of(_dims(program)))
    yield f"grid {', '.join(map(str, program.grid))}"
    for name in ("block", "cluster", "warp"):
        yield f"{name} {getattr(program, name)}"
    if program.resident:
        yield f"resident {program.resident}"
    for buffer in program.buffers:
        count = "" if buffer.count is None else f" {buffer.count}"
        yield f"buffer {buffer.name} {buffer.dtype} {buffer.access}{count}"
    for scalar in program.scalars:
        dim = "" if scalar.dim is None else f" = {scalar.dim}"
        yield f"scalar {_result(scalar.value, number)} {scalar.name}{dim}"
    for tensor in program.maps:
        box = "x".join(map(str, (*(o.box for o in tensor.outer), *tensor.box)))
        outer = [d for o in tensor.outer for d in (o.count, o.stride)]
        outer += [d for w in tensor.windows for d in (w.count, w.first, w.step)]
        dims = ", ".join(map(str, (*tensor.dims, tensor.row_stride, tensor.offset, *outer)))
        yield f"map {tensor.name} {tensor.buffer} {box} {dims}"
    for memory in program.shared:
        swizzled = " swizzled" if memory.is_swizzled else ""
        yield f"shared {memory.name} {memory.dtype} {memory.count} align {memory.align}{swizzled}"
    yield from (f"mbarrier {m.name} {m.count}" for m in program.mbarriers)
    for table in program.tables:
        yield f"table {table.name} {table.dtype} {' '.join(map(repr, table.values))}"
    yield from (f"failure {meaning}" for meaning in program.failures)


def _dims(program: Program) -> Iterable[DimLike]:
    yield from program.grid
    yield from (b.count for b in program.buffers if b.count is not None)
    yield from (s.dim for s in program.scalars if s.dim is not None)
    for tensor in program.maps:
        yield from (*tensor.dims, tensor.row_stride, tensor.offset)
        yield from (d for o in tensor.outer for d in (o.count, o.stride))
        yield from (w.count for w in tensor.windows)


def _dim(dim: Dim) -> str:
    low, high = dim.bounds
    return f"dim {dim.name} in {low}..{'' if high is None else high}"


def _result(value: Value, number: dict[Value, int]) -> str:
    number[value] = len(number)
    return f"%{number[value]}: {value.type}"


def _region(region: Region, number: dict[Value, int], depth: int) -> list[str]:
    lines: list[str] = []
    for node in region.nodes:
        lines += _node(node, number, depth)
    if region.yields:
        lines.append(f"{INDENT * depth}yield {_values(region.yields, number)}")
    return lines


def _node(node: Node, number: dict[Value, int], depth: int) -> list[str]:
    args = _values(node.args, number)
    attrs = "".join(f" {k}={_attr(v)}" for k, v in node.attrs.items())
    inner: list[str] = []
    for region in node.regions:
        params = ", ".join(_result(p, number) for p in region.params)
        inner.append(f"{INDENT * (depth + 1)}region {params}".rstrip())
        inner += _region(region, number, depth + 2)
    results = ", ".join(_result(r, number) for r in node.results)
    made = f"{results} = " if results else ""
    return [f"{INDENT * depth}{made}{mnemonic(type(node))}({args}){attrs}", *inner]


def _attr(value: object) -> str:
    return ("true" if value else "false") if isinstance(value, bool) else str(value)


def _values(values: Iterable[Value], number: dict[Value, int]) -> str:
    return ", ".join(f"%{number.get(v, '?')}" for v in values)
