"""LLVM text of vector programs.

Nothing here is undefined behaviour: what LLVM leaves undefined (a shift past the width, a float out
of an integer's range) is emitted so that it is not.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from rlx.core.dtype import DType
from rlx.program import nodes as ir
from rlx.program import vector_nodes as vec
from rlx.program.nodes import Node, Number, Value
from rlx.program.types import POINTERS, Address, Type, Uniform

ELEMENT = {
    DType.BOOL: "i1", DType.F32: "float", DType.F64: "double",
    DType.I8: "i8", DType.I16: "i16", DType.I32: "i32", DType.I64: "i64",
    DType.U8: "i8", DType.U16: "i16", DType.U32: "i32", DType.U64: "i64",
    DType.F16: "half",
}  # fmt: skip
SUFFIX = {"float": "f32", "double": "f64", "half": "f16"}
FLOAT_WORDS = {"add": "fadd", "sub": "fsub", "mul": "fmul", "div": "fdiv"}
SIGNED_WORDS = {"div": "sdiv", "rem": "srem", "shr": "ashr"}
UNSIGNED_WORDS = {"div": "udiv", "rem": "urem", "shr": "lshr"}
FLOAT_ORDER = {"eq": "oeq", "ne": "une", "lt": "olt", "le": "ole", "gt": "ogt", "ge": "oge"}
INTRINSICS = {"abs": "fabs", "floor": "floor", "trunc": "trunc", "round": "roundeven"}
SCALE_MASK = {DType.F32: "i16", DType.F64: "i8"}
POLL_EFFECTS = "cold nounwind memory(argmem: readwrite, inaccessiblemem: readwrite)"


def literal(value: Number, dtype: DType) -> str:
    """A constant as LLVM writes it; floats by their bits."""
    if dtype is DType.BOOL:
        return "true" if value else "false"
    if not dtype.is_float:
        return str(int(value))
    if math.isnan(value):
        value = math.nan
    if dtype is DType.F32:
        value = struct.unpack("f", struct.pack("f", value))[0]
    return f"0x{struct.unpack('Q', struct.pack('d', value))[0]:016X}"


class Types:
    """LLVM's names of types, for a number of lanes."""

    def __init__(self, lanes: int) -> None:
        self.lanes = lanes
        self._texts: dict[Type, str] = {}

    def __getitem__(self, kind: Type) -> str:
        text = self._texts.get(kind)
        if text is None:
            text = self._texts[kind] = self._text(kind)
        return text

    def _text(self, kind: Type) -> str:
        if isinstance(kind, DType):
            return self.vector(ELEMENT[kind])
        if isinstance(kind, Uniform):
            return ELEMENT[kind.dtype]
        assert isinstance(kind, Address)
        return self.vector("ptr") if kind.is_varying else "ptr"

    def vector(self, element: str) -> str:
        return f"<{self.lanes} x {element}>"

    def suffix(self, kind: Type) -> str:
        """In the name of an intrinsic."""
        if isinstance(kind, DType):
            return self.element_suffix(ELEMENT[kind])
        assert isinstance(kind, Uniform)
        element = ELEMENT[kind.dtype]
        return SUFFIX.get(element, element)

    def element_suffix(self, element: str) -> str:
        return f"v{self.lanes}{SUFFIX.get(element, element)}"


class Printer:
    """The lines of one function. Values and the labels of control flow have names already."""

    def __init__(
        self, types: Types, names: Mapping[Value, str], labels: Mapping[Node, tuple[str, ...]]
    ) -> None:
        self.types, self.names, self.labels = types, names, labels
        self.lines: list[str] = []

    def print(self, nodes: Iterable[Node]) -> None:
        """Append the lines of nodes."""
        for node in nodes:
            one = _LINES.get(type(node))
            if one is None:
                _BLOCKS[type(node)](self, node)
            elif line := one(self, node):
                self.lines.append(line)

    # -- words ----------------------------------------------------------------------------------

    def typed(self, value: Value) -> str:
        return f"{self.types[value.type]} {self.names[value]}"

    def let(self, node: Node, text: str) -> str:
        return f"  {self.names[node.results[0]]} = {text}"

    def called(self, name: str, result: str, args: Sequence[str]) -> str:
        return f"call {result} @llvm.{name}({', '.join(args)})"

    def intrinsic(self, node: Node, name: str) -> str:
        """Of arguments of one type, which is the result's."""
        kind = node.results[0].type
        args = [self.typed(a) for a in node.args]
        return self.let(
            node, self.called(f"{name}.{self.types.suffix(kind)}", self.types[kind], args)
        )

    # -- numbers --------------------------------------------------------------------------------

    def nothing(self, node: Node) -> str:
        """Constants, and what is the same bits: their users name them."""
        del node
        return ""

    def binary(self, node: ir.Binary) -> str:
        left, right = node.args
        dtype = left.dtype
        if node.op in ("min", "max"):
            return self.intrinsic(node, f"{'s' if dtype.is_signed else 'u'}{node.op}")
        by_kind = SIGNED_WORDS if dtype.is_signed else UNSIGNED_WORDS
        word = FLOAT_WORDS[node.op] if dtype.is_float else by_kind.get(node.op, node.op)
        return self.let(node, f"{word} {self.typed(left)}, {self.names[right]}")

    def compare(self, node: ir.Compare) -> str:
        left, right = node.args
        dtype, order = left.dtype, node.op
        if dtype.is_float:
            word = f"fcmp {FLOAT_ORDER[order]}"
        elif order in ("eq", "ne"):
            word = f"icmp {order}"
        else:
            word = f"icmp {'s' if dtype.is_signed else 'u'}{order}"
        return self.let(node, f"{word} {self.typed(left)}, {self.names[right]}")

    def unordered(self, node: vec.Unordered) -> str:
        left, right = node.args
        return self.let(node, f"fcmp uno {self.typed(left)}, {self.names[right]}")

    def unary(self, node: ir.Unary) -> str:
        if node.op == "neg":
            return self.let(node, f"fneg {self.typed(node.args[0])}")
        return self.intrinsic(node, INTRINSICS[node.op])

    def select(self, node: ir.Select) -> str:
        return self.let(node, f"select {', '.join(map(self.typed, node.args))}")

    def convert(self, node: ir.Convert) -> str:
        (value,), to = node.args, node.results[0]
        word = conversion(value.dtype, to.dtype)
        if word:
            return self.let(node, f"{word} {self.typed(value)} to {self.types[to.type]}")
        return ""

    def saturating(self, node: vec.SaturatingConvert) -> str:
        (value,), to = node.args, node.results[0]
        word = "fptosi" if to.dtype.is_signed else "fptoui"
        ends = f"{self.types.suffix(to.type)}.{self.types.suffix(value.type)}"
        text = self.called(f"{word}.sat.{ends}", self.types[to.type], [self.typed(value)])
        return self.let(node, text)

    def bitcast(self, node: ir.Bitcast) -> str:
        (value,), to = node.args, node.results[0]
        if self.types[value.type] != self.types[to.type]:
            return self.let(node, f"bitcast {self.typed(value)} to {self.types[to.type]}")
        return ""

    def fma(self, node: ir.Fma) -> str:
        return self.intrinsic(node, "fma")

    def function(self, node: ir.Call) -> str:
        return self.intrinsic(node, node.function)

    def named_intrinsic(self, node: vec.Intrinsic) -> str:
        return self.intrinsic(node, node.name)

    def function_call(self, node: vec.FunctionCall) -> str:
        args = ", ".join(map(self.typed, node.args))
        return self.let(node, f"call {self.types[node.results[0].type]} @{node.function}({args})")

    # -- lanes ----------------------------------------------------------------------------------

    def broadcast(self, node: vec.Broadcast) -> None:
        (scalar,), (first,) = node.args, self.labels[node]
        kind, order = self.types[node.results[0].type], self.types.vector("i32")
        text = f"shufflevector {kind} {first}, {kind} poison, {order} zeroinitializer"
        self.lines += [
            f"  {first} = insertelement {kind} poison, {self.typed(scalar)}, i32 0",
            self.let(node, text),
        ]

    def first_lane(self, node: vec.FirstLane) -> str:
        kind, condition = self.types[node.results[0].type], self.typed(node.args[0])
        return self.let(node, f"insertelement {kind} zeroinitializer, {condition}, i32 0")

    def extract(self, node: vec.ExtractLane) -> str:
        return self.let(node, f"extractelement {self.typed(node.args[0])}, i32 {node.lane}")

    def permute(self, node: vec.Permute) -> str:
        order = ", ".join("i32 poison" if p < 0 else f"i32 {p}" for p in node.picks)
        first, kind = self.typed(node.args[0]), self.types[node.args[0].type]
        second = self.typed(node.args[1]) if len(node.args) > 1 else f"{kind} poison"
        mask = f"{self.types.vector('i32')} <{order}>"
        return self.let(node, f"shufflevector {first}, {second}, {mask}")

    def opaque_mask(self, node: vec.OpaqueMask) -> None:
        """Through a mask register, which has eight lanes at least."""
        mask, parts, lanes = node.args[0], self.labels[node], self.types.lanes
        kind, wide, name = self.types[mask.type], max(8, lanes), self.names[node.results[0]]
        if not parts:
            self.lines.append(f"  {name} = {_through_register(kind, self.names[mask])}")
            return
        longer, hidden = parts
        order = f"<{wide} x i32> {_first_lanes(wide, lanes)}"
        back = f"{self.types.vector('i32')} {_first_lanes(lanes, lanes)}"
        self.lines += [
            f"  {longer} = shufflevector {self.typed(mask)}, {kind} zeroinitializer, {order}",
            f"  {hidden} = {_through_register(f'<{wide} x i1>', longer)}",
            f"  {name} = shufflevector <{wide} x i1> {hidden}, <{wide} x i1> poison, {back}",
        ]

    def scale(self, node: vec.Scale) -> str:
        x, n = map(self.typed, node.args)
        args = [x, n, x, f"{SCALE_MASK[node.args[0].dtype]} -1", "i32 4"]
        name, kind = scale_name(node.args[0].dtype), self.types[node.args[0].type]
        return self.let(node, self.called(name, kind, args))

    def any_lane(self, node: vec.AnyLane) -> str:
        name = f"vector.reduce.or.{self.types.element_suffix('i1')}"
        return self.let(node, self.called(name, "i1", [self.typed(node.args[0])]))

    # -- memory ---------------------------------------------------------------------------------

    def advance(self, node: vec.Advance) -> str:
        base, index = node.args
        element = self.types[node.element]
        return self.let(node, f"getelementptr {element}, {self.typed(base)}, {self.typed(index)}")

    def local(self, node: vec.Local) -> str:
        return self.let(node, f"alloca {self.types[node.kind]}, align 64")

    def load(self, node: vec.Load) -> str:
        where, kind = node.args[0], self.types[node.results[0].type]
        if len(node.args) == 1:
            return self.let(node, f"load {kind}, {self.typed(where)}{_aligned(node.align)}")
        name = f"{self._masked(where, 'load', 'gather')}.{self._access(node.results[0], where)}"
        args = [self._at(where, node.align), self.typed(node.args[1]), f"{kind} zeroinitializer"]
        return self.let(node, self.called(name, kind, args))

    def store(self, node: vec.Store) -> str:
        where, value, *mask = node.args
        if not mask:
            hint = ", !nontemporal !0" if node.is_streaming else ""
            text = f"store {self.typed(value)}, {self.typed(where)}"
            return f"  {text}{_aligned(node.align)}{hint}"
        name = f"{self._masked(where, 'store', 'scatter')}.{self._access(value, where)}"
        args = [self.typed(value), self._at(where, node.align), self.typed(mask[0])]
        return f"  {self.called(name, 'void', args)}"

    def _masked(self, where: Value, beside: str, apart: str) -> str:
        return f"masked.{apart if where.type is POINTERS else beside}"

    def _access(self, value: Value, where: Value) -> str:
        is_varying = where.type is POINTERS
        return f"{self.types.suffix(value.type)}.{f'v{self.types.lanes}' * is_varying}p0"

    def _at(self, where: Value, align: int) -> str:
        return f"{self.types[where.type]} align {align} {self.names[where]}"

    # -- control --------------------------------------------------------------------------------

    def branch(self, node: ir.If) -> None:
        yes, done = self.labels[node]
        condition = self.names[node.args[0]]
        self.lines += [f"  br i1 {condition}, label %{yes}, label %{done}", f"{yes}:"]
        self.print(node.regions[0].nodes)
        self.lines += [f"  br label %{done}", f"{done}:"]

    def count(self, node: ir.For) -> None:
        low, high, step = (self.names[a] for a in node.args)
        slot, head, body, done, more, following = self.labels[node]
        index = self.names[node.regions[0].params[0]]
        self.lines += [
            f"  store i64 {low}, ptr {slot}",
            f"  br label %{head}",
            f"{head}:",
            f"  {index} = load i64, ptr {slot}",
            f"  {more} = icmp slt i64 {index}, {high}",
            f"  br i1 {more}, label %{body}, label %{done}",
            f"{body}:",
        ]
        self.print(node.regions[0].nodes)
        if following != index:
            self.lines.append(f"  {following} = add i64 {index}, {step}")
        self.lines += [f"  store i64 {following}, ptr {slot}", f"  br label %{head}", f"{done}:"]

    def repeat(self, node: ir.While) -> None:
        head, body, done, *slots = self.labels[node]
        condition, step = node.regions
        goes_on = self.names[condition.yields[0]]
        self._carry(node.args, slots, head)
        self.lines.append(f"{head}:")
        for value, slot in zip(condition.params, slots):
            name, kind = self.names[value], self.types[value.type]
            self.lines.append(f"  {name} = load {kind}, ptr {slot}")
        self.print(condition.nodes)
        self.lines += [f"  br i1 {goes_on}, label %{body}, label %{done}", f"{body}:"]
        self.print(step.nodes)
        self._carry(step.yields, slots, head)
        self.lines.append(f"{done}:")

    def _carry(self, values: Sequence[Value], slots: Sequence[str], head: str) -> None:
        """Store the values of the next turn."""
        for value, slot in zip(values, slots):
            self.lines.append(f"  store {self.typed(value)}, ptr {slot}")
        self.lines.append(f"  br label %{head}")

    def poll(self, node: vec.Poll) -> None:
        function, code, is_over, yes, done, left = self.labels[node]
        self.lines += [
            f"  {function} = load ptr, ptr %poll",
            f"  {code} = call i32 {function}(ptr %poll) {POLL_EFFECTS}",
            f"  {is_over} = icmp ne i32 {code}, 0",
            f"  br i1 {is_over}, label %{yes}, label %{done}",
            f"{yes}:",
            f"  {node.statement.format(code)}",
            f"{left}:",
            f"  br label %{done}",
            f"{done}:",
        ]

    def leave(self, node: vec.Return) -> None:
        self.lines += [f"  ret i32 {node.code}", *(f"{label}:" for label in self.labels[node])]

    def fail_if(self, node: vec.FailIf) -> None:
        fail, on = self.labels[node]
        condition = self.names[node.args[0]]
        self.lines += [f"  br i1 {condition}, label %{fail}, label %{on}", f"{on}:"]

    def verbatim(self, node: vec.Verbatim) -> None:
        self.lines += node.lines


_LINES: dict[type[Node], Callable[[Printer, Any], str]] = {
    vec.LaneIndex: Printer.nothing, vec.VectorConst: Printer.nothing,
    ir.Binary: Printer.binary, ir.Compare: Printer.compare, vec.Unordered: Printer.unordered,
    ir.Unary: Printer.unary, ir.Select: Printer.select, ir.Convert: Printer.convert,
    vec.SaturatingConvert: Printer.saturating, ir.Bitcast: Printer.bitcast, ir.Fma: Printer.fma,
    ir.Call: Printer.function, vec.Intrinsic: Printer.named_intrinsic,
    vec.FunctionCall: Printer.function_call, vec.FirstLane: Printer.first_lane,
    vec.ExtractLane: Printer.extract, vec.Permute: Printer.permute, vec.AnyLane: Printer.any_lane,
    vec.Scale: Printer.scale,
    vec.Advance: Printer.advance, vec.Local: Printer.local, vec.Load: Printer.load,
    vec.Store: Printer.store,
}  # fmt: skip
"""Nodes that are one instruction, or none."""
_BLOCKS: dict[type[Node], Callable[[Printer, Any], None]] = {
    vec.Broadcast: Printer.broadcast, vec.OpaqueMask: Printer.opaque_mask,
    ir.If: Printer.branch, ir.For: Printer.count,
    ir.While: Printer.repeat, vec.Poll: Printer.poll, vec.Return: Printer.leave,
    vec.FailIf: Printer.fail_if, vec.Verbatim: Printer.verbatim,
}  # fmt: skip


def scale_name(dtype: DType) -> str:
    return f"x86.avx512.mask.scalef.{'ps' if dtype is DType.F32 else 'pd'}.512"


def _through_register(kind: str, mask: str) -> str:
    return f'call {kind} asm "", "=k,0"({kind} {mask})'


def _first_lanes(count: int, lanes: int) -> str:
    """The first lanes of a vector, then one of the next vector as often as is needed."""
    return f"<{', '.join(f'i32 {min(n, lanes)}' for n in range(count))}>"


def _aligned(align: int) -> str:
    return f", align {align}" if align else ""


def conversion(given: DType, to: DType) -> str:
    """LLVM's conversion instruction; none where the bits stay."""
    if given.is_float and to.is_float:
        return "fpext" if given.itemsize < to.itemsize else "fptrunc"
    if to.is_float:
        return "sitofp" if given.is_signed else "uitofp"
    if given.is_float:
        return "fptosi"
    if to.itemsize < given.itemsize:
        return "trunc"
    if given is DType.BOOL:
        return "zext"
    if to.itemsize == given.itemsize:
        return ""
    return "sext" if given.is_signed else "zext"
