"""Structured source of a SIMT program: values by name, regions as loops and branches.

A dialect says how types, declarations and the leaves are written; what is here is the same for all
languages of C's kind. A value is held as an expression: a name, a literal, or a computation that is
used once. What loops and branches carry is a variable, which is assigned where a region ends.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar

from rlx.backends.gpu.source.uses import inlined, makers
from rlx.core.dtype import DType
from rlx.core.errors import UnsupportedError
from rlx.program import nodes as ir
from rlx.program.errors import located
from rlx.program.nodes import Node, Region, Value
from rlx.program.program import Program

Expressions = Mapping[type[Node], Callable[[Any], str]]
Statements = Mapping[type[Node], Callable[[Any], None]]
VARIABLE = re.compile(r"\bc\d+\b")
NAME = re.compile(r"[A-Za-z_]\w*(\.\w)?$")
"""A name, or a part of what has one."""
MAX_EXPRESSION = 160
"""Characters of a computation that is not under a name: parsers recurse over expressions."""


class Structured(ABC):
    """The lines of one kernel. Values are v1, v2, …, variables c1, c2, …, indices j1, j2, …"""

    language: ClassVar[str]
    endless: ClassVar[str]
    """The head of a loop that only a break ends."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.lines: list[str] = []
        self.held: dict[Value, str] = {}
        self.makers = makers(program)
        self._inlined = inlined(program)
        self._count = 0
        self._depth = 1

    # -- what a dialect says ---------------------------------------------------------------------

    @abstractmethod
    def type_name(self, dtype: DType) -> str:
        """The type of the value that holds a number."""

    @abstractmethod
    def constant(self, name: str, kind: str, expression: str) -> str:
        """The declaration of a name for a value."""

    @abstractmethod
    def variable(self, name: str, kind: str, expression: str | None) -> str:
        """The declaration of a variable, with its first value, if it has one."""

    @abstractmethod
    def expressions(self) -> Expressions:
        """The expression of each kind of node that has one result and does nothing else."""

    @abstractmethod
    def statements(self) -> Statements:
        """What writes the lines of each other kind, and holds its results."""

    @abstractmethod
    def less(self, dtype: DType, a: str, b: str) -> str:
        """Whether an index is below another."""

    @abstractmethod
    def sum(self, dtype: DType, a: str, b: str) -> str:
        """Of two indices."""

    # -- lines -----------------------------------------------------------------------------------

    def do(self, line: str) -> None:
        self.lines.append(" " * self._depth + line)

    def open(self, head: str) -> None:
        self.do(f"{head} {{")
        self._depth += 1

    def close(self, then: str = "") -> None:
        """The end of a block, and the head of the next one of the same statement."""
        self._depth -= 1
        self.do(f"}} {then} {{" if then else "}")
        self._depth += bool(then)

    def name(self, prefix: str = "v") -> str:
        self._count += 1
        return f"{prefix}{self._count}"

    def let(self, kind: str, expression: str) -> str:
        """A name for a value."""
        made = self.name()
        self.do(self.constant(made, kind, expression))
        return made

    def named(self, value: Value) -> str:
        """A value as a name or a literal: for what is written more than once."""
        held = self.held[value]
        if NAME.match(held) or isinstance(self.makers.get(value), ir.Const):
            return held
        self.held[value] = self.let(self.type_name(value.dtype), held)
        return self.held[value]

    def one(self, value: Value) -> str:
        return self.held[value]

    def all(self, values: Sequence[Value]) -> list[str]:
        return [self.held[v] for v in values]

    def give(self, values: Sequence[Value], made: Sequence[str]) -> None:
        """Hold the results of a node: under names, but where each is used once."""
        for value, expression in zip(values, made, strict=True):
            self.held[value] = self._given(value, expression)

    def _given(self, value: Value, expression: str) -> str:
        is_short = len(expression) <= MAX_EXPRESSION
        if NAME.match(expression) or (value in self._inlined and is_short):
            return expression
        return self.let(self.type_name(value.dtype), expression)

    def number(self, value: Value) -> ir.Number | None:
        """The number, where the value is a constant."""
        node = self.makers.get(value)
        return node.value if isinstance(node, ir.Const) else None

    def unsupported(self, node: Node | None, what: str) -> UnsupportedError:
        return UnsupportedError(located(self.program, node, f"{self.language} has no {what}"))

    # -- nodes -----------------------------------------------------------------------------------

    @cached_property
    def _kinds(
        self,
    ) -> tuple[
        Mapping[type[Node], Callable[[Any], str]], Mapping[type[Node], Callable[[Any], None]]
    ]:
        return self.expressions(), self.statements()

    def nodes(self, region: Region) -> None:
        expressions, statements = self._kinds
        for node in region.nodes:
            kind = type(node)
            if kind in expressions:
                expression = expressions[kind](node)
                is_literal = isinstance(node, ir.Const)
                held = expression if is_literal else self._given(node.result, expression)
                self.held[node.result] = held
            elif kind in statements:
                statements[kind](node)
            elif isinstance(node, ir.For):
                self.loop(node)
            elif isinstance(node, ir.If):
                self.branch(node)
            elif isinstance(node, ir.While):
                self.repeat(node)
            else:
                raise self.unsupported(node, f"{kind.__name__}; lower it without.")

    # -- control ---------------------------------------------------------------------------------

    def own(self, values: Sequence[Value], given: Sequence[Value] | None) -> None:
        """Variables that loops and branches write, with their first values."""
        firsts = [None] * len(values) if given is None else self.all(given)
        for value, first in zip(values, firsts, strict=True):
            made = self.name("c")
            self.do(self.variable(made, self.type_name(value.dtype), first))
            self.held[value] = made

    def assign(self, values: Sequence[Value], given: Sequence[Value]) -> None:
        """All at once: an expression may read variables that are assigned before it."""
        targets = self.all(values)
        sources = self.all(given)
        pairs = [(v, t, s) for v, t, s in zip(values, targets, sources, strict=True) if t != s]
        staged: list[tuple[str, str]] = []
        for i, (value, target, source) in enumerate(pairs):
            before = {t for _, t, _ in pairs[:i]}
            if before & set(VARIABLE.findall(source)):
                source = self.let(self.type_name(value.dtype), source)
            staged.append((target, source))
        for target, source in staged:
            self.do(f"{target} = {source};")

    def loop(self, node: ir.For) -> None:
        (body,) = node.regions
        low, high, step = node.args[:3]
        index, *params = body.params
        self.own(params, node.args[3:])
        kind = index.dtype
        end, by = self.bound(node, high), self.bound(node, step)
        made = self.name("j")
        first = self.variable(made, self.type_name(kind), self.bound(node, low))
        more = f"{self.less(kind, made, end)}; {made} = {self.sum(kind, made, by)}"
        self.held[index] = made
        self.open(f"for ({first} {more})")
        self.nodes(body)
        self.assign(params, body.yields)
        self.close()
        self.held.update(zip(node.results, self.all(params), strict=True))

    def bound(self, node: Node, value: Value) -> str:
        """A bound of a loop as a name or a literal."""
        return self.named(value)

    def condition(self, node: Node, value: Value) -> str:
        """Whether a branch is taken, or a loop goes on."""
        return self.one(value)

    def branch(self, node: ir.If) -> None:
        then, other = node.regions
        self.own(node.results, None)
        self.open(f"if ({self.condition(node, node.args[0])})")
        self.nodes(then)
        self.assign(node.results, then.yields)
        if other.nodes or other.yields:
            self.close("else")
            self.nodes(other)
            self.assign(node.results, other.yields)
        self.close()

    def repeat(self, node: ir.While) -> None:
        test, body = node.regions
        self.own(test.params, node.args)
        self.open(self.endless)
        self.nodes(test)
        self.do(f"if (!({self.condition(node, test.yields[0])})) {{ break; }}")
        self.held.update(zip(body.params, self.all(test.params), strict=True))
        self.nodes(body)
        self.assign(test.params, body.yields)
        self.close()
        self.held.update(zip(node.results, self.all(test.params), strict=True))
