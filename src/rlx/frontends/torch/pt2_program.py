"""Checks of the JSON of an exported program, before torch reads it.

torch evaluates sizes as Python (sympify), compiles names into the source of a function, looks ops
up along any attributes, and imports modules that a structure of arguments names. So a text is an
identifier unless its field is known, ops are registered ones, sizes are written anew from what was
parsed of them, and structures hold values alone.
"""

from __future__ import annotations

import ast
import functools
import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from rlx.core.errors import Error
from rlx.frontends.torch.namespaces import torch

MAX_TEXT, MAX_NODES, MAX_ARMS = 1 << 15, 2000, 8
"""Of the text of a size: its letters, the nodes of its syntax tree, and the operands of minima and
maxima, which sympy compares pair by pair."""
MAX_BITS = 4096
"""Of any number that evaluating a size gives."""
MAX_DEPTH = 64
MAX_TERMS, MAX_DEGREE = 64, 16
MAX_POWER, FLOAT_BITS = 64, 1024
FLOAT = re.compile(r"-?[0-9]{1,40}(\.[0-9]{0,40})?(e[-+]?[0-9]{1,2})?", re.ASCII)
IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,999}", re.ASCII)
SYMBOL = re.compile(r"[A-Za-z_]+[0-9]{0,6}", re.ASCII)
"""torch counts up to the number of a symbol."""
OP = re.compile(r"torch\.ops\.([a-zA-Z]\w*)\.(\w+)(?:\.([a-zA-Z]\w*))?", re.ASCII)
PYTHON_OPS = frozenset(
    f"_operator.{name}"
    for name in (
        "eq", "ne", "le", "ge", "lt", "gt", "neg", "pos", "mul", "add", "sub", "floordiv", "mod",
        "pow", "truediv", "and_", "or_", "lshift", "rshift", "getitem",
    )
) | {"math.trunc", "math.ceil", "math.floor"} | {
    f"torch.sym_{name}"
    for name in ("not", "int", "float", "ite", "max", "min", "sqrt", "sum")
}  # fmt: skip
POWERS = frozenset(("Pow", "PowByNatural", "FloatPow", "LShift", "RShift"))
FUNCTIONS = POWERS | {
    "Add", "Mul", "Max", "Min", "Abs", "floor", "ceiling", "And", "Or", "Not", "Eq", "Ne", "Lt",
    "Le", "Gt", "Ge", "Equality", "Unequality", "GreaterThan", "LessThan", "StrictGreaterThan",
    "StrictLessThan", "FloorDiv", "ModularIndexing", "Where", "PythonMod", "Mod", "CleanDiv",
    "CeilToInt", "FloorToInt", "CeilDiv", "FloatTrueDiv", "IntTrueDiv", "TruncToFloat",
    "TruncToInt", "RoundToInt", "ToFloat", "Identity",
}  # fmt: skip
FACTORIES = frozenset(("list", "dict", "set", "tuple", "int", "float", "str", "bool"))

Rule: TypeAlias = Callable[[str], str]


def checked_program(program: Any) -> Any:
    """The program without what torch would run of it; one that needs that is refused."""
    try:
        return _checked("", program)
    except RecursionError:
        raise Error("its program is nested too deeply.") from None


def guards_of(program: Any) -> tuple[str, ...]:
    """What the program states of the sizes that it was traced with: text, which rlx parses."""
    found = program.get("guards_code") or ()
    return tuple(map(str, found)) if isinstance(found, list) else ()


def _checked(field: str, value: Any) -> Any:
    match value:
        case str():
            return RULES.get(field, identifier)(value)
        case list():
            items = value[:1] if field == "module_call_graph" else value
            return [_checked(field, v) for v in items]
        case dict():
            return _checked_fields(field, value)
        case _:
            return value


def _checked_fields(field: str, value: Mapping[str, Any]) -> dict[str, Any]:
    """Names of values are names like others; fields are what the schema of programs calls them."""
    if field in NAMED_VALUES:
        return {identifier(k): _checked("", v) for k, v in value.items()}
    if field == "range_constraints":
        return {_symbol(k): _checked("", v) for k, v in value.items()}
    if field == "metadata":
        return {k: v for k, v in value.items() if k in METADATA and isinstance(v, str)}
    kept = {identifier(k): v for k, v in value.items() if k not in DROPPED}
    return {k: _checked(k, v) for k, v in kept.items()} | {k: [] for k in value if k in LISTS}


def identifier(text: str) -> str:
    if text and not IDENTIFIER.fullmatch(text):
        raise Error(f"{text[:80]!r} is no name.")
    return text


def operator(text: str) -> str:
    """An op that is registered with torch, or one of Python's on sizes."""
    if text in PYTHON_OPS:
        return text
    found = OP.fullmatch(text)
    op: Any = torch.ops if found else None
    for part in found.groups() if found else ():
        op = op if part is None else getattr(op, part, None)
    if not isinstance(op, torch._ops.OpOverload | torch._ops.HigherOrderOperator):
        raise Error(f"{text[:80]!r} is no op that is registered here.")
    return text


def _free(text: str) -> str:
    """Text that is a value, or a key: torch does nothing with it."""
    return text


def _number(text: str) -> str:
    if text not in ("Infinity", "-Infinity", "NaN"):
        raise Error(f"{text[:80]!r} is no number.")
    return text


def _symbol(text: str) -> str:
    if not SYMBOL.fullmatch(text):
        raise Error(f"{text[:80]!r} is no name of a size.")
    return text


# -- structures ------------------------------------------------------------------------------------


def structure(text: str) -> str:
    """The structure of arguments or results, a pytree: its types are registered ones, and what they
    hold names no module."""
    try:
        version, tree = json.loads(text)
        _check_tree(tree)
    except (ValueError, TypeError, LookupError, RecursionError):
        raise Error(f"{text[:80]!r} is no structure of arguments.") from None
    return json.dumps([version, tree])


def _check_tree(tree: Any, depth: int = 0) -> None:
    if depth > MAX_DEPTH:
        raise Error("its arguments are nested too deeply.")
    context, children = tree["context"], tree["children_spec"]
    is_json = isinstance(context, str) and context[:1] in ("{", "[")
    _check_context(json.loads(context) if is_json else context)
    for child in children:
        _check_tree(child, depth + 1)


def _check_context(value: Any) -> None:
    """An enum, or the factory of a defaultdict, is looked up in a module, which importing runs."""
    match value:
        case {"default_factory_module": "builtins", "default_factory_name": name, **rest} if (
            name in FACTORIES
        ):
            _check_context(rest)
        case dict():
            if "__enum__" in value or "default_factory_module" in value:
                raise Error("its arguments hold a class of a module, which would be imported.")
            _check_context(list(value.values()))
        case list():
            for item in value:
                _check_context(item)
        case _:
            pass


# -- sizes -----------------------------------------------------------------------------------------


def expression(text: str) -> str:
    """The text of a size, written anew from its syntax tree: numbers, symbols, and functions of
    them whose values have at most MAX_BITS bits."""
    try:
        tree = ast.parse(text[: MAX_TEXT + 1], mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise Error(f"{text[:80]!r} is no size.") from None
    nodes = list(ast.walk(tree)) if len(text) <= MAX_TEXT else []
    arms = sum(map(_arms, nodes))
    if not 0 < len(nodes) <= MAX_NODES or arms > MAX_ARMS:
        raise Error(f"the size {text[:80]!r}… is too long.")
    _extent(tree.body)
    return ast.unparse(tree)


def _arms(node: ast.AST) -> int:
    """How many operands of a minimum or maximum are compared with each other: numbers are not."""
    match node:
        case ast.Call(func=ast.Name(id="Max" | "Min"), args=args):
            varying = sum(_literal(a) is None for a in args)
            return varying if varying > 1 else 0
        case _:
            return 0


@dataclass(frozen=True, slots=True)
class Extent:
    """Bounds of what evaluating a size gives: the bits of its value, and its terms and degree where
    it is multiplied out, as sympy does to divide it."""

    bits: int = 1
    terms: int = 1
    degree: int = 0

    def __add__(self, other: Extent) -> Extent:
        bits, degree = max(self.bits, other.bits) + 1, max(self.degree, other.degree)
        return Extent(bits, self.terms + other.terms, degree)

    def __mul__(self, other: Extent) -> Extent:
        bits, degree = self.bits + other.bits, self.degree + other.degree
        return Extent(bits, self.terms * other.terms, degree)

    @property
    def is_small(self) -> bool:
        return self.bits <= MAX_BITS and self.terms <= MAX_TERMS and self.degree <= MAX_DEGREE

    @property
    def atom(self) -> Extent:
        """That of a function of it, which is not multiplied out."""
        return Extent(self.bits, 1, 1)


SYMBOL_EXTENT = Extent(64, 1, 1)
FLOAT_EXTENT = Extent(FLOAT_BITS)


def _extent(node: ast.expr) -> Extent:
    found = _extent_of(node)
    if found is None or not found.is_small:
        raise Error(f"{ast.unparse(node)[:80]!r} is no size, or one beyond all bounds.")
    return found


def _extent_of(node: ast.expr) -> Extent | None:
    match node:
        case ast.Constant(value=bool()):
            return Extent()
        case ast.Constant(value=int() | float() as value):
            return Extent(int(value).bit_length()) if abs(value) < 1 << 1000 else None
        case ast.Name(id=name) if SYMBOL.fullmatch(name):
            return SYMBOL_EXTENT
        case ast.UnaryOp(operand=operand):
            return _extent(operand)
        case ast.BinOp(left=left, op=ast.Pow(), right=right):
            return _power(left, right)
        case ast.BinOp(left=left, op=ast.Add() | ast.Sub(), right=right):
            return _extent(left) + _extent(right)
        case ast.BinOp(left=left, op=ast.Mult(), right=right):
            return _extent(left) * _extent(right)
        case ast.BinOp(left=left, op=ast.FloorDiv() | ast.Mod() | ast.Div(), right=right):
            return (_extent(left) + _extent(right)).atom
        case ast.Compare(left=left, comparators=[right]):
            return (_extent(left) + _extent(right)).atom
        case ast.Call(func=ast.Name(id=name), args=args, keywords=keywords):
            return _call(name, args, keywords)
        case _:
            return None


def _call(name: str, args: list[ast.expr], keywords: list[ast.keyword]) -> Extent | None:
    match name, args:
        case "Symbol", [ast.Constant(value=str(text))] if SYMBOL.fullmatch(text):
            return SYMBOL_EXTENT if all(map(_is_flag, keywords)) else None
        case "Float", [ast.Constant(value=str(text))] if FLOAT.fullmatch(text):
            return FLOAT_EXTENT if all(map(_is_precision, keywords)) else None
        case "Integer" | "Rational", _ if args and all(map(_is_whole, args)) and not keywords:
            return Extent(sum(_extent(a).bits for a in args))
        case _ if name in POWERS and len(args) == 2 and not keywords:
            return _power(*args)
        case _ if name in FUNCTIONS and args and not keywords:
            found = list(map(_extent, args))
            return _combined(name, found)
        case _:
            return None


def _combined(name: str, found: list[Extent]) -> Extent:
    match name:
        case "Mul":
            return functools.reduce(Extent.__mul__, found)
        case "Add":
            return functools.reduce(Extent.__add__, found)
        case _:
            return functools.reduce(Extent.__add__, found).atom


def _is_flag(keyword: ast.keyword) -> bool:
    """An assumption on a symbol."""
    return isinstance(keyword.value, ast.Constant) and isinstance(keyword.value.value, bool)


def _is_precision(keyword: ast.keyword) -> bool:
    """The bits of a float."""
    value = keyword.value.value if isinstance(keyword.value, ast.Constant) else None
    return keyword.arg == "precision" and type(value) is int and 0 < value < FLOAT_BITS


def _is_whole(node: ast.expr) -> bool:
    inner = node.operand if isinstance(node, ast.UnaryOp) else node
    return isinstance(inner, ast.Constant) and type(inner.value) is int


def _power(base: ast.expr, exponent: ast.expr) -> Extent | None:
    """A power whose exponent is a number, and small."""
    number = _literal(exponent)
    if number is None or not number <= MAX_POWER:
        return None
    _extent(exponent)
    return functools.reduce(Extent.__mul__, [_extent(base)] * max(1, math.ceil(number)))


def _literal(node: ast.expr) -> float | None:
    """The magnitude of a number; None where it is none."""
    match node:
        case ast.Constant(value=int() | float() as value):
            return abs(value)
        case ast.UnaryOp(operand=operand):
            return _literal(operand)
        case ast.Call(func=ast.Name(id="Integer" | "Rational"), args=[first, *_]):
            return _literal(first)
        case ast.Call(func=ast.Name(id="Float"), args=[ast.Constant(value=str(text))]):
            return abs(float(text)) if FLOAT.fullmatch(text) else None
        case _:
            return None


RULES: Mapping[str, Rule] = {
    "target": operator, "as_operator": operator, "expr_str": expression, "in_spec": structure,
    "out_spec": structure, "as_string": _free, "as_strings": _free, "parameter_name": _free,
    "buffer_name": _free, "tensor_constant_name": _free, "custom_obj_name": _free,
    "class_fqn": _free, "user_input_name": _free, "torch_version": _free, "fqn": _free,
    "as_float": _number, "as_floats": _number, "as_float_lists": _number, "real": _number,
    "imag": _number,
}  # fmt: skip
"""Field → what its text must be; of all others it is an identifier."""
NAMED_VALUES = frozenset((
    "tensor_values", "sym_int_values", "sym_bool_values", "sym_float_values", "custom_obj_values",
    "opset_version", "as_string_to_argument",
))  # fmt: skip
METADATA = frozenset(("stack_trace", "nn_module_stack"))
"""What errors and reports name; of the rest, torch would look up functions by name."""
LISTS = frozenset(("guards_code",))
"""Python text that torch compiles into the module of a program, which rlx does not ask for."""
DROPPED = LISTS | {"treespec_namedtuple_fields"}
