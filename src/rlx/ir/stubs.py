"""`python -m rlx.ir.stubs`: the op and block tables as stubs, for type checkers and editors.

`rlx.ops` has each op on arrays, on nodes, and on what stands for either; `Graph` and `HirModule`
have it as a method.
"""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Iterable
from inspect import Parameter
from pathlib import Path
from typing import Any

from rlx.ir import block
from rlx.ir.hir import HirModule
from rlx.ir.mir import Graph
from rlx.ops.call_signature import OPERAND, call_signature, python_name
from rlx.ops.op import Kind, Op, table

WIDTH = 100
PACKAGE = Path(__file__).parents[1]
HEAD = '''"""{what} Written from the tables by `make docs`; do not edit."""

# pyright: reportOverlappingOverload=false, reportUnusedImport=false
# mypy: disable-error-code="overload-overlap"

from collections.abc import Sequence
from typing import Any, Literal, overload

from rlx.core.dim import Dim
from rlx.ir.mir import Graph, Node
from rlx.ir.operand_types import Array, DTypeLike, Operand, Symbol, Value
'''
MEANINGS = (("Value", "Array"), (OPERAND, "Node"))
"""What operands may be, and what the results are then."""
SYMBOLIC = "def {name}(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ..."
"""Patterns and shapes: their attributes may be patterns, too."""


def files() -> dict[Path, str]:
    """Each stub's file, and what it is to hold."""
    return {
        PACKAGE / "ops" / "__init__.pyi": functions(),
        PACKAGE / "ir" / "op_methods.pyi": methods(),
    }


def functions() -> str:
    """The stub of `rlx.ops`."""
    made = [HEAD.format(what="Every op as a function.")]
    for op in table().values():
        if op.kind is not Kind.LEAF:
            made += [_function(op), *_aliases(op)]
    return "\n".join(made)


def methods() -> str:
    """The stub of what `Graph` and `HirModule` derive from."""
    made = [HEAD.format(what="Every op and block as a method.")]
    for name, base, ops in _classes():
        made.append(f"\nclass {name}{base}:")
        made += [textwrap.indent(text, "    ") for op in ops for text in _method(op)]
    return "\n".join(made)


def _classes() -> Iterable[tuple[str, str, list[Op]]]:
    written = {*_own_names(Graph), *_own_names(HirModule)}
    blocks, ops = block.table(), table()
    yield "_Ops", "", [o for n, o in ops.items() if n not in written and n not in blocks]
    yield "OpMethods", "(_Ops)", [o for n, o in ops.items() if n in blocks]
    yield "BlockMethods", "(_Ops)", list(blocks.values())


def _own_names(builder: type) -> set[str]:
    return {n for c in builder.__mro__ for n in vars(c)}


def _aliases(op: Op) -> list[str]:
    return [f"{python_name(a)} = {python_name(op.name)}" for a in op.aliases]


def _function(op: Op) -> str:
    """On arrays, on nodes, and on symbols; without operands there is but one meaning."""
    given = call_signature(op)
    if not any(OPERAND in str(p.annotation) for p in given.parameters.values()):
        return _definition(op, given, *MEANINGS[0], doc=True)
    texts = [_definition(op, given, *m, doc=i == 0) for i, m in enumerate(MEANINGS)]
    texts.append(SYMBOLIC.format(name=python_name(op.name)))
    return "\n".join(f"@overload\n{text}" for text in texts)


def _method(op: Op) -> list[str]:
    given = call_signature(op)
    own = Parameter("self", Parameter.POSITIONAL_OR_KEYWORD)
    first = next(iter(given.parameters.values()), own)
    own = (
        own.replace(kind=Parameter.POSITIONAL_ONLY) if first.kind is first.POSITIONAL_ONLY else own
    )
    whole = given.replace(parameters=[own, *given.parameters.values()])
    return [_definition(op, whole, OPERAND, "Node", doc=True), *_aliases(op)]


def _definition(op: Op, given: inspect.Signature, operand: str, result: str, *, doc: bool) -> str:
    """A function without a body: one line where it fits, else one parameter per line."""
    parameters = [_parameter(p, operand) for p in given.parameters.values()]
    parameters = _marked(parameters, list(given.parameters.values()))
    made = given.return_annotation.replace("Node", result)
    head, tail = f"def {python_name(op.name)}(", f") -> {made}:"
    line = f"{head}{', '.join(parameters)}{tail}"
    if len(line) > WIDTH - 8:
        line = "\n".join([head, *(f"    {p}," for p in parameters), tail])
    return f"{line}\n{_docstring(op)}" if doc else f"{line} ..."


def _docstring(op: Op) -> str:
    text = op.doc.replace("\\", "\\\\").replace('"""', "'''")
    body = f'"""{text}"""' if "\n" not in text else f'"""{text}\n"""'
    return textwrap.indent(body, "    ", lambda line: bool(line.strip()))


def _parameter(p: Parameter, operand: str) -> str:
    star = "*" if p.kind is p.VAR_POSITIONAL else ""
    if p.annotation is p.empty:
        return p.name
    text = f"{star}{python_name(p.name)}: {str(p.annotation).replace(OPERAND, operand)}"
    return text if p.default is p.empty else f"{text} = {_default(p.default)}"


def _marked(texts: list[str], parameters: list[Parameter]) -> list[str]:
    """The same with / after what is by position alone, and * before what is by name alone."""
    made: list[str] = []
    has_star = any(p.kind is p.VAR_POSITIONAL for p in parameters)
    for i, (text, p) in enumerate(zip(texts, parameters)):
        if p.kind is p.KEYWORD_ONLY and not has_star:
            made.append("*")
            has_star = True
        made.append(text)
        following = parameters[i + 1].kind if i + 1 < len(parameters) else None
        if p.kind is p.POSITIONAL_ONLY and following is not p.POSITIONAL_ONLY:
            made.append("/")
    return made


def _default(value: Any) -> str:
    is_plain = value is None or isinstance(value, bool | int | str) or value == ()
    is_finite = isinstance(value, float) and abs(value) < float("inf")
    return repr(value) if is_plain or is_finite else "..."


def main() -> None:
    for path, text in files().items():
        path.write_text(text)


if __name__ == "__main__":
    main()
