"""Functions that WGSL lacks, or has less accurate, as functions of a module.

They are the expansions of the GPU level, printed once for a module that calls them: their text is
long, and every rounding of it is kept.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cached_property
from typing import Any

from rlx.backends.gpu.expand.functions import expanded
from rlx.backends.wgpu.wgsl.arithmetic import function_name
from rlx.backends.wgpu.wgsl.memory import Memory
from rlx.backends.wgpu.wgsl.rounding import combined
from rlx.backends.wgpu.wgsl.text import F32
from rlx.program import nodes as ir
from rlx.program.builder import Builder
from rlx.program.functions import FUNCTIONS
from rlx.program.nodes import Node, Value


def definitions(calls: Iterable[ir.Call]) -> list[str]:
    """The lines of the functions that are called, those that they call included."""
    lines: dict[str, None] = {}
    for call in calls:
        lines.update(dict.fromkeys(_definition(call.function, call.accuracy)))
    return list(lines)


@functools.cache
def _definition(name: str, accuracy: Any) -> tuple[str, ...]:
    b = Builder(name, block=1, warp=1)
    given = [b.scalar(f"x{i}", F32) for i in range(FUNCTIONS[name].arity)]
    call = ir.Call(function=name, accuracy=accuracy)
    made = expanded(b, call, given, has_f64=False)
    program = b.program()
    body = replace(program.body, yields=(made.value,))
    printer = _Function(replace(program, body=body))
    return *printer.text(function_name(call)), *definitions(printer.functions.values())


class _Function(Memory):
    """A function without memory but for tables."""

    @cached_property
    def rounded(self) -> frozenset[Value]:
        return combined(self.program)

    def statements(self) -> dict[type[Node], Callable[[Any], None]]:
        return {ir.TableLoad: self.table_load}

    def text(self, name: str) -> list[str]:
        """Its definition as one line of a dictionary, and those of its tables."""
        for scalar in self.program.scalars:
            self.held[scalar.value] = scalar.name
        self.nodes(self.program.body)
        result = self.one(self.program.body.yields[0])
        given = ", ".join(f"{s.name}: f32" for s in self.program.scalars)
        lines = [f"fn {name}({given}) -> f32 {{", *self.lines, f" return {result};", "}"]
        return [*self.table_lines(), "\n".join(lines)]
