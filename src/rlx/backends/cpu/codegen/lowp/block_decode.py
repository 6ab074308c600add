"""Vector code of quantised blocks, from the expressions of their formats (`rlx.ops.quant`).

Packets of terms become vectors. Bytes stay bytes as long as they can, as vectors of many lanes fit
small registers then; shifts by different amounts take 32 bits. So a vector may hold an unsigned
integer in more bits than its term has, but never another number.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from rlx.backends.cpu.codegen.lowp.decode_plan import (
    DecodePlan,
    Packet,
    Window,
    columns_of,
    decode_plan,
    filled,
    groups_of,
    is_isomorphic,
    is_uniform,
    numbers_of,
)
from rlx.backends.cpu.codegen.math import elementwise
from rlx.backends.cpu.codegen.math.permute import PERMUTED, permuted
from rlx.backends.cpu.library.fft.twiddles import constant
from rlx.backends.cpu.library.shared_functions import helper
from rlx.backends.cpu.llvm.builder import Code
from rlx.backends.cpu.llvm.printer import ELEMENT, literal
from rlx.backends.cpu.llvm.values import Vec
from rlx.core.dtype import DType
from rlx.ops.quant.block_expr import (
    Apply,
    BlockFormat,
    Const,
    Expr,
    Load,
    Lookup,
    Operand,
    Position,
    Table,
    postorder,
)

BOOL, F32, I32, U32 = DType.BOOL, DType.F32, DType.I32, DType.U32
SHIFTS = ("shift_left", "shift_right")
BITWISE = ("bit_and", "bit_or", "bit_xor", *SHIFTS)
"""Ops of unsigned integers that may be held in more bits."""
SCALAR = {
    "add": "add", "sub": "sub", "mul": "mul", "bit_and": "and", "bit_or": "or", "bit_xor": "xor",
    "equal": "icmp eq", "not_equal": "icmp ne",
}  # fmt: skip
UNSIGNED = {**SCALAR, "shift_left": "shl", "shift_right": "lshr", "less": "icmp ult"}
"""LLVM's instructions for scalar integers; other ops are taken of vectors."""


@dataclass(slots=True)
class Block:
    """Weights being decoded: their address, their operands, and the vectors so far."""

    code: Code
    plan: DecodePlan
    start: str
    operands: Mapping[str, Vec] = field(default_factory=dict[str, Vec])
    _vectors: dict[Packet, Vec] = field(default_factory=dict[Packet, Vec])
    _scalars: dict[Expr, str] = field(default_factory=dict[Expr, str])

    def weights(self, position: int) -> Vec:
        """As many weights as there are lanes, from a position on."""
        return self.vector(self.plan.packet(position))

    def vector(self, packet: Packet) -> Vec:
        if packet not in self._vectors:
            self._vectors[packet] = self._vector(packet)
        return self._vectors[packet]

    def _vector(self, packet: Packet) -> Vec:
        if is_uniform(packet):
            return self._uniform(packet[0])
        if self.code.lanes in PERMUTED and packet in self.plan.permutations:
            found = self.plan.permutations[packet]
            return permuted(self.vector(found.values), self.vector(found.indices).to(I32))
        if not is_isomorphic(packet):
            return self._blended(packet, groups_of(packet))
        match packet[0]:
            case Const():
                return self._literal(packet)
            case Load():
                return self._loaded(packet)
            case Lookup():
                return self._looked_up(packet)
            case Apply():
                return self._applied(packet)
            case _:
                raise AssertionError(packet[0])

    # -- leaves ---------------------------------------------------------------------------------

    def _literal(self, packet: Packet) -> Vec:
        dtype = packet[0].dtype
        values = (t.value for t in packet if isinstance(t, Const))
        parts = (f"{ELEMENT[dtype]} {literal(v, dtype)}" for v in values)
        return self.code.vector_of(f"<{', '.join(parts)}>", dtype)

    def _loaded(self, packet: Packet) -> Vec:
        window, dtype = self.plan.window(packet), packet[0].dtype
        if window is None:
            return self._inserted(packet)
        return self._shuffled(window, dtype)

    def _shuffled(self, window: Window, dtype: DType) -> Vec:
        code, lanes = self.code, self.code.lanes
        kind = f"<{window.count} x {ELEMENT[dtype]}>"
        given = code.let(f"load {kind}, ptr {self._pointer(window.start)}, align 1")
        if window.picks == tuple(range(lanes)):
            return code.vector_of(given, dtype)
        mask = f"<{lanes} x i32> <{', '.join(f'i32 {p}' for p in window.picks)}>"
        made = code.let(f"shufflevector {kind} {given}, {kind} poison, {mask}")
        return code.vector_of(made, dtype)

    def _inserted(self, packet: Packet) -> Vec:
        """Scalars, lane by lane."""
        dtype, made = packet[0].dtype, "poison"
        kind = self.code.vector(ELEMENT[dtype])
        for lane, t in enumerate(packet):
            one = f"{ELEMENT[dtype]} {self.scalar(t)}"
            made = self.code.let(f"insertelement {kind} {made}, {one}, i32 {lane}")
        return self.code.vector_of(made, dtype)

    def _looked_up(self, packet: Packet) -> Vec:
        """Components of one row, or an element of a small table per lane."""
        row, column = columns_of(packet)
        node, numbers = packet[0], numbers_of(column)
        assert isinstance(node, Lookup)
        first = 0 if numbers is None else numbers[0]
        if is_uniform(row) and numbers == list(range(first, first + self.code.lanes)):
            where = self._element(node.table, row[0], first)
            kind = self.code.vector(ELEMENT[node.dtype])
            text = f"load {kind}, ptr {where}, align {node.dtype.itemsize}"
            return self.code.vector_of(self.code.let(text), node.dtype)
        return self._gathered(node.table, self.vector(row), self.vector(column))

    def _gathered(self, table: Table, row: Vec, column: Vec) -> Vec:
        code, element = self.code, ELEMENT[table.dtype]
        index = row.to(I32) if table.width == 1 else row.to(I32) * table.width + column.to(I32)
        base, kind = _constant(code, table), code.vector(element)
        where = code.let(f"getelementptr {element}, ptr {base}, {index.type} {index.text}")
        made = code.intrinsic(
            f"masked.gather.{code.suffix(element)}.v{code.lanes}p0", kind,
            f"{code.vector('ptr')} align {table.dtype.itemsize} {where}",
            f"{code.vector('i1')} splat (i1 true)", f"{kind} zeroinitializer",
        )  # fmt: skip
        return code.vector_of(made, table.dtype)

    # -- ops ------------------------------------------------------------------------------------

    def _blended(self, packet: Packet, groups: list[list[int]]) -> Vec:
        """Each lane of the vector that applies what it does."""
        made = self.vector(filled(packet, groups[0]))
        for lanes in groups[1:]:
            left, right = _of_one_width(made, self.vector(filled(packet, lanes)))
            picks = ", ".join(f"i1 {int(i in lanes)}" for i in range(len(packet)))
            made = right.where(self.code.vector_of(f"<{picks}>", BOOL), left)
        return made

    def _applied(self, packet: Packet) -> Vec:
        node = packet[0]
        assert isinstance(node, Apply)
        if node.op == "not_equal" and (mask := self._bits(packet)) is not None:
            return mask
        args = [self.vector(c) for c in columns_of(packet)]
        if node.op in BITWISE and not node.dtype.is_signed:
            return self._bitwise(packet, node, args)
        if node.op == "where":
            yes, no = _of_one_width(*args[1:])
            return yes.where(args[0], no)
        return self._exact(node, args)

    def _exact(self, node: Apply, args: list[Vec]) -> Vec:
        """An op of the table on numbers held in their own dtypes."""
        given = node.args[0].dtype
        if node.op == "cast" and given.is_integer and node.dtype.is_float:
            return self._real(args[0], node.args[0], node.dtype)
        if node.op == "cast" and given.is_integer and _is_wide(args[0], node.args[0]):
            fits = given.itemsize <= node.dtype.itemsize < args[0].dtype.itemsize
            return args[0] if fits else args[0].to(node.dtype)
        held = [a.to(x.dtype) if _is_wide(a, x) else a for a, x in zip(args, node.args)]
        return elementwise.apply(node.op, held, node.attrs, given)

    def _real(self, x: Vec, term: Expr, to: DType) -> Vec:
        """Integers below 2³¹ as signed ones, which is one instruction everywhere."""
        bound = self.plan.terms.bound(term)
        if x.dtype.itemsize == 8 or (x.dtype is U32 and (bound is None or bound >= 1 << 31)):
            return x.to(to)
        return (x.bits(I32) if x.dtype is U32 else x.to(I32)).to(to)

    def _bitwise(self, packet: Packet, node: Apply, args: list[Vec]) -> Vec:
        """Of unsigned integers, in as many bits as the widest is held in."""
        if node.op not in SHIFTS:
            left, right = _of_one_width(*args)
            return elementwise.NATIVE[node.op](left, right)
        amounts = numbers_of(columns_of(packet)[1])
        if amounts is None or max(amounts) >= 8 * node.dtype.itemsize:
            return self._exact(node, args)
        if not any(amounts):
            return args[0]
        x = args[0].to(U32) if len(set(amounts)) > 1 and args[0].dtype.itemsize < 4 else args[0]
        if node.op == "shift_left" and _is_wide(x, node) and self._overflows(packet, amounts):
            x = args[0].to(node.dtype)
        kind = ELEMENT[x.dtype]
        by = self.code.vector_of(f"<{', '.join(f'{kind} {n}' for n in amounts)}>", x.dtype)
        return x << by if node.op == "shift_left" else x >> by

    def _overflows(self, packet: Packet, amounts: list[int]) -> bool:
        """May bits be shifted out of the terms' dtype?"""
        most = (1 << 8 * packet[0].dtype.itemsize) - 1
        bounds = [self.plan.terms.bound(t.args[0]) for t in packet]
        return any(b is None or b << n > most for b, n in zip(bounds, amounts, strict=True))

    def _bits(self, packet: Packet) -> Vec | None:
        """The mask of consecutive bits of one integer; None if the packet is none."""
        tested = [_bit(t) for t in packet]
        found = [t for t in tested if t is not None]
        if len(found) < len(tested):
            return None
        (x, first), lanes = found[0], self.code.lanes
        if any(y is not x or n != first + i for i, (y, n) in enumerate(found)):
            return None
        code, text = self.code, self._converted(x, U32)
        text = code.integer("shr", text, first, DType.U32) if first else text
        low = code.let(f"trunc i32 {text} to i{lanes}")
        return code.vector_of(code.let(f"bitcast i{lanes} {low} to {code.vector('i1')}"), BOOL)

    # -- what all lanes share -------------------------------------------------------------------

    def _uniform(self, term: Expr) -> Vec:
        if isinstance(term, Operand):
            return self.operands[term.name]
        if term in self.plan.shared:
            packet, lane = self.plan.shared[term]
            return self.vector(packet).shuffled([lane] * self.code.lanes)
        if isinstance(term, Const):
            return self.code.const(term.value, term.dtype)
        if not isinstance(term, Apply) or self._is_scalar(term):
            return self.code.splat(self.scalar(term), term.dtype)
        given = term.args[0]
        if term.op == "where":
            return self._chosen(term)
        if term.op == "cast" and isinstance(given, Operand):
            return self._exact(term, [self.operands[given.name]])
        if term.op == "cast" and given.dtype.is_integer and term.dtype.compute is term.dtype:
            return self.code.splat(self._scalar_real(given, term.dtype), term.dtype)
        if term.op == "bitcast" and term.dtype is F32:
            one = self.code.let(f"bitcast i32 {self.scalar(given)} to float")
            return self.code.splat(one, F32)
        args = [self._uniform_vector(a) for a in term.args]
        return elementwise.apply(term.op, args, term.attrs, given.dtype)

    def _is_scalar(self, term: Apply) -> bool:
        """Does one scalar instruction, or none, compute it? Shifts by less than the width do."""
        if term.dtype.is_float or any(
            a.dtype.is_float or isinstance(a, Operand) for a in term.args
        ):
            return False
        if term.op in SHIFTS:
            amount = self.plan.terms.bound(term.args[1])
            if amount is None or amount >= 8 * term.dtype.itemsize:
                return False
        ops = SCALAR if term.args[-1].dtype.is_signed else UNSIGNED
        return term.op in ops or term.op in ("where", "cast", "bitcast")

    def _uniform_vector(self, term: Expr) -> Vec:
        return self.vector((term,) * self.code.lanes)

    def _chosen(self, term: Apply) -> Vec:
        yes, no = (self._uniform_vector(a) for a in term.args[1:])
        text = f"select i1 {self.scalar(term.args[0])}, {yes.type} {yes.text}, {no.type} {no.text}"
        return yes.made(text)

    def _scalar_real(self, term: Expr, to: DType) -> str:
        bound, kind = self.plan.terms.bound(term), ELEMENT[term.dtype]
        is_small = bound is not None and bound < 1 << 8 * term.dtype.itemsize - 1
        word = "sitofp" if term.dtype.is_signed or is_small else "uitofp"
        return self.code.let(f"{word} {kind} {self.scalar(term)} to {ELEMENT[to]}")

    def scalar(self, term: Expr) -> str:
        """A term as a scalar."""
        if isinstance(term, Const):
            return literal(term.value, term.dtype)
        if term not in self._scalars:
            self._scalars[term] = self._scalar(term)
        return self._scalars[term]

    def _scalar(self, term: Expr) -> str:
        code, kind = self.code, ELEMENT[term.dtype]
        match term:
            case Load(args=(Const(value=offset),)):
                return code.let(f"load {kind}, ptr {self._pointer(int(offset))}, align 1")
            case Lookup(args=(row, Const(value=column))):
                return code.let(f"load {kind}, ptr {self._element(term.table, row, int(column))}")
            case Apply(op="where", args=(condition, yes, no)):
                picked = f"{kind} {self.scalar(yes)}, {kind} {self.scalar(no)}"
                return code.let(f"select i1 {self.scalar(condition)}, {picked}")
            case Apply(op="cast" | "bitcast", args=(given,)) if self._is_scalar(term):
                return self._converted(given, term.dtype)
            case Apply(op=op, args=(left, right)) if self._is_scalar(term):
                typed = f"{ELEMENT[left.dtype]} {self.scalar(left)}, {self.scalar(right)}"
                return code.let(f"{UNSIGNED[op]} {typed}")
            case _:
                return self._uniform_vector(term).lane()

    def _converted(self, given: Expr, to: DType) -> str:
        """An integer of another width; extended by its sign, if it has one."""
        value, (old, new) = self.scalar(given), (ELEMENT[d] for d in (given.dtype, to))
        if old == new:
            return value
        extend = "sext" if given.dtype.is_signed else "zext"
        word = extend if to.itemsize > given.dtype.itemsize else "trunc"
        return self.code.let(f"{word} {old} {value} to {new}")

    def _element(self, table: Table, row: Expr, column: int) -> str:
        """The address of a table's element."""
        code, kind = self.code, ELEMENT[table.dtype]
        index = code.let(f"zext {ELEMENT[row.dtype]} {self.scalar(row)} to i64")
        base = _constant(code, table)
        line = code.let(f"getelementptr [{table.width} x {kind}], ptr {base}, i64 {index}")
        return code.let(f"getelementptr {kind}, ptr {line}, i64 {column}") if column else line

    def _pointer(self, at: int) -> str:
        return self.code.advanced(self.start, at, DType.U8) if at else self.start


def _constant(code: Code, table: Table) -> str:
    return constant(code, table.name, table.values)


def _is_wide(x: Vec, term: Expr) -> bool:
    """Is an integer held in more bits than its dtype has?"""
    return term.dtype.is_integer and x.dtype.itemsize > term.dtype.itemsize


def _of_one_width(x: Vec, y: Vec) -> tuple[Vec, Vec]:
    if x.dtype.itemsize < y.dtype.itemsize:
        return x.to(y.dtype), y
    return x, y.to(x.dtype) if y.dtype.itemsize < x.dtype.itemsize else y


def _bit(term: Expr) -> tuple[Expr, int] | None:
    """Of (x >> n & 1) != 0, x and n."""
    match term:
        case Apply(
            op="not_equal",
            args=(
                Apply(
                    op="bit_and",
                    args=(Apply(op="shift_right", args=(x, Const(value=n))), Const(value=1)),
                ),
                Const(value=0),
            ),
        ):
            return x, int(n)
        case _:
            return None


# -- whole rows, and any positions ----------------------------------------------------------------


def unpack(code: Code, name: str, block_format: BlockFormat) -> str:
    """The name of `void (ptr from, ptr to, i64 blocks)`, which stores what the format's expression
    is. A vector takes several small blocks, and those that are left one by one."""
    full, args = f"unpack.{name}", "ptr %from, ptr %to, i64 %count"
    lanes = code.isa.lanes(F32)
    step = 1 << max(1, lanes // block_format.weights).bit_length() - 1
    for blocks in sorted({1, step}):
        plan = decode_plan(block_format, blocks * block_format.weights, lanes)
        helper(code, f"{full}.{blocks}", args, _unpacking(full, plan, blocks), plan.lanes)
    return f"{full}.{step}"


def _unpacking(name: str, plan: DecodePlan, step: int) -> Callable[[Code], None]:
    block_format, dtype = plan.terms.block_format, plan.terms.block_format.value.dtype

    def build(code: Code) -> None:
        whole = code.integer("and", "%count", -step) if step > 1 else "%count"
        with code.count(0, whole, step) as i:
            start, to = _advanced(code, block_format, i)
            block = Block(code, plan, start)
            for position in range(0, plan.count, plan.lanes):
                value = block.weights(position).to(dtype)
                where = code.let(f"getelementptr {ELEMENT[dtype]}, ptr {to}, i64 {position}")
                code.do(f"store {value.type} {value.text}, ptr {where}, align {dtype.itemsize}")
        if step > 1:
            start, to = _advanced(code, block_format, whole)
            rest = code.integer("sub", "%count", whole)
            code.do(f"call void @{name}.1(ptr {start}, ptr {to}, i64 {rest})")

    return build


def _advanced(code: Code, block_format: BlockFormat, block: str) -> tuple[str, str]:
    """The addresses of a block, and of its weights."""
    start = code.let(f"getelementptr [{block_format.block_bytes} x i8], ptr %from, i64 {block}")
    row = f"[{block_format.weights} x {ELEMENT[block_format.value.dtype]}]"
    return start, code.let(f"getelementptr {row}, ptr %to, i64 {block}")


def decoded_at(
    block_format: BlockFormat,
    positions: Vec,
    load: Callable[[Vec], Vec],
    operands: Mapping[str, Vec],
) -> Vec:
    """Weights at positions of a row that are found at run time; `load` gathers bytes."""
    code, made = positions.code, dict[Expr, Vec]()
    block = positions / block_format.weights
    for node in postorder(block_format.value):
        match node:
            case Position():
                made[node] = (positions % block_format.weights).to(node.dtype)
            case Const():
                made[node] = code.const(node.value, node.dtype)
            case Operand():
                made[node] = operands[node.name]
            case Load():
                made[node] = load(
                    block * block_format.block_bytes + made[node.args[0]].to(block.dtype)
                )
            case _:
                assert isinstance(node, Apply), node
                args, given = [made[a] for a in node.args], node.args[0].dtype
                made[node] = elementwise.apply(node.op, args, node.attrs, given)
    return made[block_format.value]
