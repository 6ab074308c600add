"""A function under construction as nodes of vector programs, and their names in LLVM.

Loop counters and accumulators are local variables, which SROA promotes to registers. Emitters that
write LLVM themselves (`let`, `do`) leave lines of which nothing is known; a function without any is
a whole program, which can be verified, interpreted, and printed in another language.
"""

from __future__ import annotations

from typing import Any

from rlx.backends.cpu.isa import Isa
from rlx.backends.cpu.llvm.printer import (
    Printer,
    Types,
)
from rlx.backends.cpu.llvm.values import Bound, Scalar
from rlx.core.dtype import DType
from rlx.program import nodes as ir
from rlx.program import vector_nodes as vec
from rlx.program.nodes import Node, Number, Region, Value
from rlx.program.types import POINTER, UNIFORM, UNKNOWN, Type
from rlx.program.vector_program import PureFunction, Table, VectorProgram

I64, I1 = UNIFORM[DType.I64], UNIFORM[DType.BOOL]


_TRUTH = {"true": 1, "false": 0}


class FunctionNodes:
    """The nodes of a function, and what they need besides."""

    def __init__(
        self,
        lanes: int,
        isa: Isa,
        shared: dict[str, str] | None = None,
        outlines: dict[str, PureFunction] | None = None,
    ) -> None:
        self.lanes, self.isa, self.types = lanes, isa, Types(lanes)
        self.entry: list[Node] = []
        self.body: list[Node] = []
        """Nodes of the innermost open region."""
        self.shared: dict[str, str] = {} if shared is None else shared
        """Declarations, constants and internal functions, by name: one of each in a module."""
        self.outlines: dict[str, PureFunction] = {} if outlines is None else outlines
        self.left = "ret i32 {}"
        """How the function returns with the code of a poll; empty where it has no `poll`."""
        self.names: dict[Value, str] = {}
        self.labels: dict[Node, tuple[str, ...]] = {}
        """Of blocks, and of what a node needs besides its results."""
        self.constants: dict[tuple[str, Type], tuple[Value, Number]] = {}
        self.arguments: dict[str, Value] = {}
        """Of the function, and what its entry block names."""
        self.failures: dict[str, int] = {}
        """The blocks that return a number, by their names."""
        self.tables: dict[str, Table] = {}
        """Constants in memory, by the names of their addresses."""
        self._count_of_names = 0

    # -- nodes ----------------------------------------------------------------------------------

    def name(self, prefix: str = "v") -> str:
        self._count_of_names += 1
        return f"%{prefix}{self._count_of_names}"

    def named(self, kind: Type, prefix: str = "v") -> Value:
        value = Value(kind)
        self.names[value] = self.name(prefix)
        return value

    def scalar(self, kind: type[Node], dtype: DType, *args: Value, **attrs: Any) -> Scalar:
        """A node whose result is uniform."""
        return self._scalar(kind(args=args, results=(self.named(UNIFORM[dtype]),), **attrs))

    def _scalar(self, node: Node) -> Scalar:
        self.body.append(node)
        return Scalar.of(self.names[node.results[0]], node.results[0])

    def operand(self, value: Bound, kind: Type = I64) -> Value:
        """A uniform number, or an address: a constant, a value, or what is known by its name."""
        if isinstance(value, int):
            return self._constant(str(value), kind, value)
        if value in _TRUTH:
            return self._constant(value, kind, _TRUTH[value])
        if isinstance(value, Scalar):
            known = value.value
        else:
            is_count = kind is UNIFORM[DType.U64]
            known = self.arguments.setdefault(value, Value(I64 if is_count else kind))
            self.names[known] = value
        if known.type is kind:
            return known
        view = self._named_as(value, kind)
        if known.type is not UNKNOWN:  # as unsigned, or as signed
            assert self.types[known.type] == self.types[kind], (value, known.type, kind)
            self.body.append(ir.Bitcast(args=(known,), results=(view,)))
        return view

    def _named_as(self, name: str, kind: Type) -> Value:
        """What has a name already, as a value of a type."""
        value = Value(kind)
        self.names[value] = str(name)
        return value

    def _constant(self, text: str, kind: Type, number: Number) -> Value:
        key = text, kind
        if key not in self.constants:
            value = Value(kind)
            self.names[value] = text
            self.constants[key] = value, number
        return self.constants[key][0]

    # -- lines of LLVM --------------------------------------------------------------------------

    def let(self, text: str) -> Scalar:
        name, value = self.name(), Value(UNKNOWN)
        self.names[value] = name
        self.body.append(vec.Verbatim(lines=(f"  {name} = {text}",), results=(value,)))
        return Scalar.of(name, value)

    def do(self, *statements: str) -> None:
        self.body.append(vec.Verbatim(lines=tuple(f"  {s}" for s in statements)))

    def place(self, *labels: str) -> None:
        """Blocks begin here."""
        self.body.append(vec.Verbatim(lines=tuple(f"{label}:" for label in labels)))

    def enter(self, *lines: str) -> None:
        """Whole lines of the entry block."""
        self.entry.append(vec.Verbatim(lines=lines))

    def slot(self, kind: str) -> str:
        value = self.named(POINTER, "slot")
        self.enter(f"  {self.names[value]} = alloca {kind}, align 64")
        return Scalar.of(self.names[value], value)

    def intrinsic(self, name: str, result: str, *typed: str) -> str:
        """A call of an LLVM intrinsic; each argument is its type and its name."""
        self.declare(name, result, *map(_type_of, typed))
        text = f"call {result} @llvm.{name}({', '.join(typed)})"
        if result != "void":
            return self.let(text)
        self.do(text)
        return ""

    def declare(self, name: str, result: str, *types: str) -> None:
        self.shared[f"llvm.{name}"] = f"declare {result} @llvm.{name}({', '.join(types)})"

    def declare_for(self, name: str, dtype: DType, count: int) -> None:
        """An intrinsic on vectors of one type."""
        kind = self.types[dtype]
        self.declare(f"{name}.{self.types.suffix(dtype)}", kind, *[kind] * count)

    def function(self, head: str) -> str:
        printer = Printer(self.types, self.names, self.labels)
        printer.print(self.entry)
        printer.print(self.body)
        lines = printer.lines
        lines += [f"{label}:\n  ret i32 {code}" for label, code in self.failures.items()]
        return "\n".join([f"{head} #0 {{", "entry:", *lines, "}", ""])

    def program(self, name: str) -> VectorProgram:
        """What is known of the function."""
        return VectorProgram(
            name,
            self.lanes,
            tuple(self.entry),
            tuple(self.body),
            dict(self.constants.values()),
            self.arguments,
            self.tables,
            self.outlines,
        )

    def outline(self, region: Region) -> PureFunction:
        names = self.arguments.items()
        tables = {name: value for name, value in names if name in self.tables}
        return PureFunction(region, dict(self.constants.values()), tables)


def _type_of(typed: str) -> str:
    """The type of `type [attributes] name`."""
    if typed[0] in "<[":
        return typed[: typed.index(">" if typed[0] == "<" else "]") + 1]
    return typed.split()[0]
