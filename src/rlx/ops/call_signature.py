"""How an op is called, as Python states it: operands, then attributes with their types.

What `inspect.signature` and editors show, and what the stubs for type checkers are written from.
"""

from __future__ import annotations

import inspect
import keyword
import types
from inspect import Parameter
from typing import TYPE_CHECKING, Any, Literal, Union, get_args, get_origin

from rlx.core.attrs import Axes, Axis, Body, Data, hints_of, only_sequence
from rlx.core.dim import Dim
from rlx.core.dtype import DType
from rlx.core.shape import Shape

if TYPE_CHECKING:
    from rlx.ops.op import Op

OPERAND = "Operand"
"""The annotation of what may be a node, an array or a number."""
EXTENT = "extent"
_PLAIN: dict[Any, str] = {
    int: "int", float: "float", bool: "bool", str: "str", DType: "DTypeLike", Data: "Value",
    Axis: "int", Axes: "int | Sequence[int] | None", Body: "Graph", Shape: "Shape", Dim: "Dim",
    type(None): "None",
}  # fmt: skip


class OwnSignature:
    """The signature of a callable instance, which its class does not share."""

    def __get__(self, op: Op | None, owner: type) -> inspect.Signature:
        if op is None:
            raise AttributeError("__signature__")
        return call_signature(op)


def call_signature(op: Op) -> inspect.Signature:
    """Operands by position, those of blocks also by name; attributes after them."""
    operands = [_operand(op, p) for p in _declared(op)]
    is_open = any(p.kind is p.VAR_POSITIONAL for p in operands)
    needs_names = any(p.default is not p.empty for p in operands)
    attributes = _attributes(op, is_keyword=is_open or needs_names)
    return inspect.Signature([*operands, *attributes], return_annotation=_result(op))


def python_name(name: str) -> str:
    """A name that Python can write: `if_`, `while_`."""
    return f"{name}_" if keyword.iskeyword(name) else name


def type_text(hint: Any) -> str:
    """What may be given for an attribute of this type: conversions take more than they give."""
    if hint in _PLAIN:
        return _PLAIN[hint]
    args = get_args(hint)
    if get_origin(hint) is Literal:
        return f"Literal[{', '.join(map(repr, args))}]"
    if get_origin(hint) is tuple:
        return f"Sequence[{type_text(args[0])}]"
    if get_origin(hint) in (Union, types.UnionType):
        return " | ".join(map(type_text, args))
    raise TypeError(f"{hint!r} is not an attribute type")


def _declared(op: Op) -> list[Parameter]:
    """The parameters of the reference that are operands."""
    given = inspect.signature(op.reference).parameters.values()
    return [p for p in given if p.kind not in (p.KEYWORD_ONLY, p.VAR_KEYWORD)]


def _operand(op: Op, declared: Parameter) -> Parameter:
    if declared.kind is declared.VAR_POSITIONAL:
        more = f"Sequence[{OPERAND}]" if op.signature.is_variadic else "None"
        return declared.replace(annotation=f"{OPERAND} | {more}")
    is_needed = declared.default is declared.empty
    kind = declared.POSITIONAL_OR_KEYWORD if op.kind.value == "block" else declared.POSITIONAL_ONLY
    return declared.replace(kind=kind, annotation=OPERAND if is_needed else f"{OPERAND} | None")


def _attributes(op: Op, *, is_keyword: bool) -> list[Parameter]:
    """Those that need a value first; `axis` is another name of `axes`, as the Array API has it."""
    hints = hints_of(op.reference)
    given = inspect.signature(op.reference).parameters.values()
    found = [
        p.replace(annotation=type_text(hints[p.name]))
        for p in given
        if p.kind is p.KEYWORD_ONLY and p.name != "without"
    ]
    is_axes = any(p.name == "axes" for p in found) and all(p.name != "axis" for p in found)
    if is_axes:
        axes = next(p for p in found if p.name == "axes")
        text = axes.annotation if "None" in axes.annotation else f"{axes.annotation} | None"
        axes = axes.replace(default=None, annotation=text)
        found = [axes if p.name == "axes" else p for p in found]
        found.append(axes.replace(name="axis", kind=Parameter.KEYWORD_ONLY))
    needed = [p.default is p.empty for p in found]
    is_ordered = needed == sorted(needed, reverse=True)
    if is_keyword or not is_ordered:
        return found
    first = [_by_position(p) for p in found if not _is_named(p)]
    if only_sequence(hints, [p.name for p in first]):
        first = _one_by_one(first[0], "int | Dim" if "Dim" in first[0].annotation else "int")
    return first + list(filter(_is_named, found))


def _one_by_one(p: Parameter, element: str) -> list[Parameter]:
    """`dims=(2, 3)` also as `2, 3`."""
    text = f"{element} | {p.annotation}"
    more = Parameter(f"more_{p.name}", Parameter.VAR_POSITIONAL, annotation=element)
    return [p.replace(annotation=text), more]


def _is_named(p: Parameter) -> bool:
    """Is it given by name alone?"""
    return p.name == EXTENT or (p.name == "axis" and p.default is None)


def _by_position(p: Parameter) -> Parameter:
    return p.replace(kind=p.POSITIONAL_OR_KEYWORD)


def _result(op: Op) -> str:
    count = len(op.signature.results)
    if count == 1:
        return "Node"
    return f"tuple[{', '.join(['Node'] * count)}]" if count else "tuple[Node, ...]"
