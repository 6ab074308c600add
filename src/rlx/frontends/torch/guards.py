"""Guards of an exported program: what torch took to be true of sizes when it traced the program.

`if x.shape[0] > 4` leaves one of its branches in the program and `x.size()[0] > 4` among the
guards: the program means nothing for other sizes. torch writes guards as Python. Their syntax trees
are read here into sizes that are not negative where a guard holds; nothing of them is run.
"""

from __future__ import annotations

import ast
import functools
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rlx.core.dim import DimLike, dim_max, dim_min, product
from rlx.core.errors import GraphError, UnsupportedError
from rlx.frontends.torch.namespaces import pytree

LAYOUTS = frozenset({"stride", "storage_offset", "is_contiguous"})
"""Where elements are in memory: rlx computes with values, wherever they are."""
ROUNDED: Mapping[str, Callable[[Any, Any], Any]] = {
    "ceil": lambda a, b: -(-a // b),
    "floor": operator.floordiv,
    "trunc": operator.floordiv,
}
"""Quotients of sizes, which are not negative."""
ARITHMETIC: Mapping[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
MAX_POWER, MAX_TEXT = 16, 1 << 15


@dataclass(frozen=True, slots=True)
class Guards:
    """The guards of a program, and what they call its arguments."""

    texts: Sequence[str]
    places: Mapping[str, int]
    """An expression of an argument, such as `L['x'][0]` → its place among the flat arguments."""

    @classmethod
    def of(cls, exported: Any, texts: Sequence[str] | None = None) -> Guards:
        """Those of an ExportedProgram; `texts` where it was read without them."""
        found = getattr(exported, "_guards_code", ()) if texts is None else texts
        return cls(tuple(found), argument_names(exported)) if found else NO_GUARDS

    def requirements(self, dims: Callable[[int], Sequence[DimLike]]) -> list[tuple[DimLike, str]]:
        """Sizes that are not negative where the guards hold, each with what it says of calls;
        `dims` gives those of an argument."""
        return [(size, self._why(t)) for t in self.texts for size in self._sizes(t, dims)]

    def _sizes(self, text: str, dims: Callable[[int], Sequence[DimLike]]) -> list[DimLike]:
        tree = _parsed(text)
        named = [n.attr for n in ast.walk(tree) if isinstance(n, ast.Attribute)]
        if LAYOUTS.intersection(named):
            return []
        reader = _Reader(text, self.places, dims)
        try:
            return [reader.truth(part) for part in _parts(tree)]
        except ZeroDivisionError:
            return [-1]  # of no meaning for such sizes
        except (RecursionError, IndexError, GraphError):
            raise _unread(text) from None

    def _why(self, text: str) -> str:
        shown = text
        for name in sorted(self.places, key=len, reverse=True):
            shown = shown.replace(name, name.removeprefix("L['").replace("']", "", 1))
        return (
            f"torch traced the program for calls with {ast.unparse(_parsed(shown))}. Trace it "
            "with arguments of such sizes"
        )


NO_GUARDS = Guards((), {})


def argument_names(program: Any) -> dict[str, int]:
    """What guards call the flat arguments of an ExportedProgram."""
    in_spec = program.call_spec.in_spec
    args, kwargs = pytree.tree_unflatten(list(range(in_spec.num_leaves)), in_spec)
    signature = program.module_call_graph[0].signature
    named = list((signature and signature.forward_arg_names) or ())
    found: dict[str, int] = {}
    for number, value in [*zip(named, args), *kwargs.items()]:
        base, _, last = number.rpartition("_")
        spread = [f"L['{base}'][{last}]"] if last.isdigit() else []
        for head in (f"L['{number}']", f"L['kwargs']['{number}']", *spread):
            found |= {head + pytree.keystr(p): v for p, v in pytree.tree_leaves_with_path(value)}
    return found | {f"L['flat_args'][{i}]": i for i in range(in_spec.num_leaves)}


@functools.lru_cache(512)
def _parsed(text: str) -> ast.expr:
    if len(text) > MAX_TEXT:
        raise _unread(text)
    try:
        return ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise _unread(text) from None


def _parts(tree: ast.expr) -> list[ast.expr]:
    """A conjunction as what it is of; an equation as two inequalities."""
    match tree:
        case ast.BoolOp(op=ast.And(), values=values):
            return [part for value in values for part in _parts(value)]
        case ast.Compare(left=left, ops=[ast.Eq()], comparators=[right]):
            pairs = ((left, right), (right, left))
            return [ast.Compare(a, [ast.LtE()], [b]) for a, b in pairs]
        case _:
            return [tree]


@dataclass(frozen=True, slots=True)
class _Reader:
    """Reads an expression into a size, and a condition into one that is negative where it does not
    hold."""

    text: str
    places: Mapping[str, int]
    dims: Callable[[int], Sequence[DimLike]]

    def truth(self, tree: ast.expr) -> DimLike:
        match tree:
            case ast.Constant(value=bool() as known):
                return 0 if known else -1
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return -1 - self.truth(operand)
            case ast.BoolOp(op=op, values=values):
                merge = dim_min if isinstance(op, ast.And) else dim_max
                return functools.reduce(merge, map(self.truth, values))
            case ast.Compare(left=left, ops=ops, comparators=comparators):
                sizes = [self.size(t) for t in (left, *comparators)]
                each = [self._compared(*p) for p in zip(ops, sizes, sizes[1:], strict=False)]
                return functools.reduce(dim_min, each)
            case _:
                raise _unread(self.text)

    def _compared(self, op: ast.cmpop, a: DimLike, b: DimLike) -> DimLike:
        match op:
            case ast.Lt():
                return b - a - 1
            case ast.LtE():
                return b - a
            case ast.Gt():
                return a - b - 1
            case ast.GtE():
                return a - b
            case ast.Eq():
                return dim_min(a - b, b - a)
            case ast.NotEq():
                return dim_max(a - b, b - a) - 1
            case _:
                raise _unread(self.text)

    def size(self, tree: ast.expr) -> DimLike:
        match tree:
            case ast.Constant(value=int() as known):
                return int(known)
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return -self.size(operand)
            case ast.BinOp(left=left, op=ast.Pow(), right=ast.Constant(value=int() as power)) if (
                0 <= power <= MAX_POWER
            ):
                return product([self.size(left)] * power)
            case ast.BinOp(left=left, op=op, right=right) if type(op) in ARITHMETIC:
                return ARITHMETIC[type(op)](self.size(left), self.size(right))
            case ast.Call(func=ast.Name(id="max" | "min" as name), args=args):
                merge = dim_max if name == "max" else dim_min
                return functools.reduce(merge, map(self.size, args))
            case ast.Call(func=ast.Attribute(value=ast.Name(id="math"), attr=name), args=[inner]):
                return self._rounded(name, inner)
            case ast.Subscript(
                value=ast.Call(func=ast.Attribute(value=owner, attr="size"), args=[]),
                slice=ast.Constant(value=int() as axis),
            ):
                return self._dims(owner)[axis]
            case ast.Subscript() | ast.Attribute():
                return self._dims(tree)[0]
            case _:
                raise _unread(self.text)

    def _rounded(self, name: str, inner: ast.expr) -> DimLike:
        match inner:
            case ast.BinOp(left=left, op=ast.Div(), right=right) if name in ROUNDED:
                return ROUNDED[name](self.size(left), self.size(right))
            case _ if name in ROUNDED:
                return self.size(inner)
            case _:
                raise _unread(self.text)

    def _dims(self, owner: ast.expr) -> Sequence[DimLike]:
        """Of a tensor, or the value of an argument that is a number."""
        place = self.places.get(ast.unparse(owner))
        if place is None:
            raise _unread(self.text)
        return self.dims(place)


def _unread(text: str) -> UnsupportedError:
    return UnsupportedError(
        f"torch traced the program for sizes of which {text[:200]!r} holds, which rlx cannot check"
    )
