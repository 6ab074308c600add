"""SSA form and types of SIMT programs."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from rlx.core.dtype import DType
from rlx.program import nodes as ir
from rlx.program.check.signatures import distinct_nodes
from rlx.program.functions import FLOATS, FUNCTIONS
from rlx.program.nodes import Node, Region, Value
from rlx.program.program import Program
from rlx.program.tensor_map import MAX_OUTER
from rlx.program.types import TileType, Type

BOOL, I32, I64 = DType.BOOL, DType.I32, DType.I64
Fault = tuple[Node | None, str]
TILE_DTYPES = {"a": (DType.F16, DType.BF16), "b": (DType.F16, DType.BF16), "c": (DType.F32,)}


def structure_faults(program: Program) -> Iterator[Fault]:
    """Every value is made once, before its uses, where they see it."""
    known = {s.value for s in program.scalars}
    yield from _region(program.body, known, None)


def _region(region: Region, outside: set[Value], owner: Node | None) -> Iterator[Fault]:
    visible = outside | set(region.params)
    for node in region.nodes:
        if not visible.issuperset(node.args):
            yield node, "it uses a value that is not made before it; move it behind its operands."
        for inner in node.regions:
            yield from _region(inner, visible, node)
        if not visible.isdisjoint(node.results):
            yield node, "it makes a value that was made before; give each node its own results."
        visible.update(node.results)
    if not visible.issuperset(region.yields):
        yield owner, "a region yields a value that it does not see; yield one made inside of it."


def type_faults(program: Program) -> Iterator[Fault]:
    types = _Types(program)
    for node in distinct_nodes(program.body):
        why = types.fault(node)
        if why:
            yield node, why


def _names(types: Sequence[Type]) -> str:
    return ", ".join(map(str, types))


class _Types:
    """The rules, one for each kind of node: none, or what is wrong."""

    def __init__(self, program: Program) -> None:
        self.program = program

    def fault(self, node: Node) -> str | None:
        rule = _rule(type(node))
        return rule(self, node) if rule is not None else None

    def _same(self, node: Node, count: int, result: Type | None = None) -> str | None:
        types = [a.type for a in node.args]
        made = [r.type for r in node.results]
        wanted = result or (types[0] if types else None)
        if len(types) != count or len(set(types)) != 1 or made != [wanted]:
            here = f"{_names(types)} and {_names(made)}"
            return f"it takes {count} of one dtype and gives one, and here are {here}; convert."
        return None

    def _Const(self, node: ir.Const) -> str | None:
        kind = node.result.type
        right = {bool: BOOL, int: None, float: None}
        if isinstance(node.value, bool) != (kind is BOOL):
            return f"{node.value!r} is no {kind}; convert it."
        if isinstance(kind, DType) and kind.is_integer and not isinstance(node.value, int):
            return f"{node.value!r} is no {kind}; convert it."
        return None if type(node.value) in right else f"{node.value!r} is no number."

    def _Binary(self, node: ir.Binary) -> str | None:
        wrong = self._same(node, 2)
        kind = node.args[0].type if node.args else None
        if wrong or not isinstance(kind, DType):
            return wrong or "it computes numbers, not tiles; use tile nodes."
        is_bits = node.op in ("and", "or", "xor", "shl", "shr")
        if is_bits and kind.is_float:
            return f"{node.op} is for integers and truth values, and {kind} is none; bitcast it."
        if kind is BOOL and node.op not in ("and", "or", "xor", "min", "max"):
            return f"truth values have no {node.op}; convert them to a number."
        return None if not kind.is_complex else "complex numbers are two values; split them."

    def _Compare(self, node: ir.Compare) -> str | None:
        return self._same(node, 2, BOOL)

    def _Unary(self, node: ir.Unary) -> str | None:
        kind = node.args[0].type if node.args else None
        wrong = self._same(node, 1)
        if wrong or not isinstance(kind, DType):
            return wrong or "it computes numbers, not tiles."
        if node.op == "not" and kind.is_float:
            return "not is for integers and truth values; bitcast it."
        if node.op in ("floor", "ceil", "trunc", "round") and not kind.is_float:
            return f"{node.op} is for floats, and this is {kind}."
        return None

    def _Call(self, node: ir.Call) -> str | None:
        known = FUNCTIONS.get(node.function)
        if known is None:
            return f"there is no function {node.function}; add it to functions.py."
        kind = node.args[0].type if node.args else None
        if kind not in FLOATS:
            return f"{node.function} is for f32 and f64, and this is {kind}; convert it."
        if node.accuracy == "fast" and (known.fast_error is None or kind is not DType.F32):
            return f"{node.function} of {kind} has no fast form; use the precise one."
        return self._same(node, known.arity)

    def _Fma(self, node: ir.Fma) -> str | None:
        return self._same(node, 3)

    def _Select(self, node: ir.Select) -> str | None:
        if len(node.args) != 3 or node.args[0].type is not BOOL:
            return "its first argument is a truth value, and two more are chosen from."
        kinds = {node.args[1].type, node.args[2].type, node.result.type}
        return (
            None if len(kinds) == 1 else f"it chooses between {_names(list(kinds))}; convert one."
        )

    def _Bitcast(self, node: ir.Bitcast) -> str | None:
        given, made = node.args[0].dtype, node.result.dtype
        if given.itemsize != made.itemsize or BOOL in (given, made):
            return f"{given} and {made} have no common bits; convert it."
        return None

    # -- memory ----------------------------------------------------------------------------------

    def _index(self, node: Node, number: int = 0) -> str | None:
        kind = node.args[number].type if len(node.args) > number else None
        return None if kind in (I32, I64) else f"its index is {kind}; use i32 or i64."

    def _mask(self, node: Node, number: int, is_there: bool = True) -> str | None:
        if not is_there or node.args[number].type is BOOL:
            return None
        return f"its mask is {node.args[number].type}; compare to get a truth value."

    def _elements(self, values: Sequence[Value], dtype: DType) -> str | None:
        if any(v.type is not dtype for v in values):
            return f"elements are {dtype}, and values {_names([v.type for v in values])}; convert."
        width = len(values)
        if not width or width & (width - 1) or width * dtype.itemsize > ir.MAX_VECTOR_BYTES:
            most = ir.MAX_VECTOR_BYTES // dtype.itemsize
            return f"{width} neighbours at once; use a power of two up to {most}."
        return None

    def _Load(self, node: ir.Load) -> str | None:
        mask = self._mask(node, 1, len(node.args) > 1)
        return self._index(node) or mask or self._elements(node.results, self._buffer(node.buffer))

    def _Store(self, node: ir.Store) -> str | None:
        values = node.args[1 + node.has_mask :]
        mask = self._mask(node, 1, node.has_mask)
        return self._index(node) or mask or self._elements(values, self._buffer(node.buffer))

    def _Atomic(self, node: ir.Atomic) -> str | None:
        mask = self._mask(node, 2, len(node.args) > 2)
        dtype = self._buffer(node.buffer)
        if node.op == "add" and dtype.is_float:
            return "a sum of floats by atomics depends on the order of arrival; reduce instead."
        return self._index(node) or mask or self._elements(node.args[1:2], dtype)

    def _SharedLoad(self, node: ir.SharedLoad) -> str | None:
        if node.is_remote and node.args[-1].type is not I32:
            return "the rank of a block is i32; convert it."
        mask = self._mask(node, 1, node.has_mask)
        return self._index(node) or mask or self._elements(node.results, self._memory(node.memory))

    def _SharedStore(self, node: ir.SharedStore) -> str | None:
        values = node.args[1 + node.has_mask :]
        mask = self._mask(node, 1, node.has_mask)
        return self._index(node) or mask or self._elements(values, self._memory(node.memory))

    def _TableLoad(self, node: ir.TableLoad) -> str | None:
        dtype = next((t.dtype for t in self.program.tables if t.name == node.table), BOOL)
        return self._index(node) or self._elements(node.results, dtype)

    def _AsyncCopy(self, node: ir.AsyncCopy) -> str | None:
        there, here = self._memory(node.memory), self._buffer(node.buffer)
        size = node.width * here.itemsize
        if there is not here or size not in (4, 8, 16):
            return f"{node.width} of {here} into {there}; copy 4, 8 or 16 bytes of one dtype."
        mask = self._mask(node, 2, len(node.args) > 2)
        return self._index(node) or self._index(node, 1) or mask

    def _Push(self, node: ir.Push) -> str | None:
        return self._index(node, 1) or self._elements(node.args[3:], self._memory(node.memory))

    def _buffer(self, name: str) -> DType:
        return next((b.dtype for b in self.program.buffers if b.name == name), BOOL)

    def _memory(self, name: str) -> DType:
        return next((s.dtype for s in self.program.shared if s.name == name), BOOL)

    # -- control ---------------------------------------------------------------------------------

    def _For(self, node: ir.For) -> str | None:
        bounds = [a.type for a in node.args[:3]]
        if len(node.regions) != 1 or len(set(bounds)) != 1 or bounds[0] not in (I32, I64):
            return f"its bounds are {_names(bounds)}; use i32 or i64 for all three."
        (body,) = node.regions
        index, *params = [p.type for p in body.params]
        carried = [a.type for a in node.args[3:]]
        lists = [params, [y.type for y in body.yields], [r.type for r in node.results]]
        if index is not bounds[0] or any(t != carried for t in lists):
            return "what it carries, yields and results in differs in type or number."
        return None

    def _If(self, node: ir.If) -> str | None:
        if len(node.args) != 1 or node.args[0].type is not BOOL or len(node.regions) != 2:
            return "it has one condition, a truth value, and two regions."
        made = [r.type for r in node.results]
        if any([y.type for y in r.yields] != made for r in node.regions):
            return "its two regions yield what differs in type or number from its results."
        return None

    def _While(self, node: ir.While) -> str | None:
        carried = [a.type for a in node.args]
        test, body = node.regions
        lists = [[v.type for v in vs] for vs in (test.params, body.params, body.yields)]
        if [y.type for y in test.yields] != [BOOL]:
            return "its test yields one truth value."
        if any(t != carried for t in (*lists, [r.type for r in node.results])):
            return "what it carries, yields and results in differs in type or number."
        return None

    # -- threads together ------------------------------------------------------------------------

    def _Reduce(self, node: ir.Reduce) -> str | None:
        return self._same(node, 1) or self._group(node.scope, node.width)

    def _Scan(self, node: ir.Scan) -> str | None:
        return self._same(node, 1) or self._group(node.scope, node.width)

    def _ReduceScatter(self, node: ir.ReduceScatter) -> str | None:
        count = len(node.args)
        if count & (count - 1) or count > node.width:
            return f"{count} values over {node.width} threads; use a power of two, at most as many."
        return self._same(node, count) or self._group("warp", node.width)

    def _Shuffle(self, node: ir.Shuffle) -> str | None:
        if not 0 < node.mask < self.program.warp:
            return f"no other lane of a warp of {self.program.warp} differs by {node.mask}."
        return self._same(node, 1)

    def _group(self, scope: str, width: int) -> str | None:
        if scope == "block":
            return None
        if width < 1 or width & (width - 1) or width > self.program.warp:
            return f"a group of {width} threads; use a power of two, at most {self.program.warp}."
        return None

    # -- tiles -----------------------------------------------------------------------------------

    def _tile(self, kind: Type, roles: str = "abc") -> str | None:
        if not isinstance(kind, TileType) or kind.role not in roles:
            return f"{kind} is no tile {' or '.join(roles)}."
        if kind.dtype not in TILE_DTYPES[kind.role]:
            return f"tiles {kind.role} are not of {kind.dtype}; convert them."
        if kind.rows % 8 or kind.columns % 8 or kind.rows * kind.columns % self.program.warp:
            return f"{kind} is no whole number of 8x8 pieces for a warp."
        return None

    def _TileLoad(self, node: ir.TileLoad) -> str | None:
        kind = node.result.type
        if isinstance(kind, TileType) and self._memory(node.memory) is not kind.dtype:
            return f"it loads {kind} from elements of {self._memory(node.memory)}; convert first."
        return self._tile(kind) or self._index(node)

    def _TileFill(self, node: ir.TileFill) -> str | None:
        return self._tile(node.result.type)

    def _TileStore(self, node: ir.TileStore) -> str | None:
        kind = node.args[1].type
        if isinstance(kind, TileType) and self._memory(node.memory) is not kind.dtype:
            return f"it stores {kind} into elements of {self._memory(node.memory)}; convert first."
        return self._tile(kind) or self._index(node)

    def _TileMul(self, node: ir.TileMul) -> str | None:
        if len(node.args) != 3:
            return "it takes tiles a, b and c."
        a, b, c = (v.type for v in node.args)
        wrong = self._tile(a, "a") or self._tile(b, "b") or self._tile(c, "c")
        if wrong or not (
            isinstance(a, TileType) and isinstance(b, TileType) and isinstance(c, TileType)
        ):
            return wrong
        shapes = (a.columns, c.rows, c.columns, a.dtype, node.result.type)
        if shapes != (b.rows, a.rows, b.columns, b.dtype, c):
            return f"{a} times {b} is no {c}; the inner sizes and dtypes must be equal."
        return None

    def _WarpgroupMul(self, node: ir.WarpgroupMul) -> str | None:
        c, last = node.args[0].type, len(node.args) - 1
        wrong = self._tile(c, "c") or self._index(node, last) or self._left(node)
        if wrong or not isinstance(c, TileType):
            return wrong
        arrays = [s for s in self.program.shared if s.name in (node.left, node.right)]
        if any(not s.is_swizzled or s.dtype not in TILE_DTYPES["a"] for s in arrays):
            return "its operands are swizzled arrays of half floats; declare them so."
        if len({s.dtype for s in arrays}) > 1 or node.result.type != c:
            return "its operands have one dtype, and its result is a tile like c."
        if node.left_panel % 512 or node.right_panel % 512:
            return "its panels are whole groups of eight lines of 64; align them."
        lines = node.depth if node.right_panel and (node.left_panel or not node.left) else 64
        if c.rows != 16 or c.columns > 256 or node.depth % 16 or not 16 <= node.depth <= lines:
            return f"{c} with depth {node.depth}; use tiles of 16 rows and a depth of 16 to 64."
        if self.program.block < 128 or self.program.warp != 32:
            return "it needs groups of four warps of 32; give the block 128 threads or more."
        return None

    def _left(self, node: ir.WarpgroupMul) -> str | None:
        """An index in shared memory, or tiles of the right operand's dtype."""
        if node.left:
            return self._index(node, 1) if len(node.args) == 3 else "it has two operands and c."
        wanted = TileType("a", 16, 16, self._memory(node.right))
        if any(a.type != wanted for a in node.args[1:-1]) or node.depth != 16 * len(
            node.args[1:-1]
        ):
            return f"its left operand is tiles {wanted}, one for 16 inner positions."
        return None

    def _BulkCopy(self, node: ir.BulkCopy) -> str | None:
        found = [m for m in self.program.maps if m.name == node.map]
        outer, windows = (len(x) for x in (found[0].outer, found[0].windows)) if found else (0, 0)
        if windows not in (0, outer):
            return f"{node.map} has {windows} axes of windows; give one to each but the channels."
        if outer > MAX_OUTER or len(node.args) != 4 + outer + windows:
            return (
                f"a box of {node.map} has {outer} outer places, at most {MAX_OUTER}, and "
                f"{windows} of a tap; give each."
            )
        return self._index(node)

    def _RegisterLimit(self, node: ir.RegisterLimit) -> str | None:
        if node.count % 8 or not 24 <= node.count <= 256:
            return f"{node.count} registers; use a multiple of 8 from 24 to 256."
        return None

    def _TileElements(self, node: ir.TileElements) -> str | None:
        kind = node.args[0].type
        return self._tile(kind) or self._held(kind, node.results)

    def _TilePack(self, node: ir.TilePack) -> str | None:
        kind = node.result.type
        return self._tile(kind) or self._held(kind, node.args)

    def _held(self, kind: Type, elements: Sequence[Value]) -> str | None:
        assert isinstance(kind, TileType)
        count = kind.rows * kind.columns // self.program.warp
        if len(elements) != count or any(e.type is not kind.dtype for e in elements):
            return f"a thread holds {count} of {kind.dtype}, and here are {len(elements)}."
        return None


@functools.cache
def _rule(kind: type[Node]) -> Callable[[_Types, Any], str | None] | None:
    """That of a kind of node, if there is something to check."""
    return getattr(_Types, f"_{kind.__name__}", None)
