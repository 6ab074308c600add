"""Type annotations as sets of values: which one an argument is outside of, once a call has failed.

Annotations are evaluated here alone. Names that a module imports for type checkers only are read
off its source; what cannot be evaluated allows any value.
"""

from __future__ import annotations

import ast
import functools
import inspect
import os
import sys
import types
from collections.abc import Callable, Collection, Iterable, Mapping
from importlib import import_module
from typing import Any, Literal, Union, get_args, get_origin, is_typeddict

import numpy as np

from rlx.core.intervals import whole

_SCALARS: dict[Any, tuple[str, str, Callable[[Any], bool]]] = {
    type(None): ("None", "None", lambda v: v is None),
    bool: ("True or False", "truth values", lambda v: isinstance(v, bool | np.bool_)),
    int: ("a whole number", "whole numbers", lambda v: whole(v) is not None),
    float: ("a number", "numbers", lambda v: hasattr(v, "__float__")),
    str: ("a string", "strings", lambda v: isinstance(v, str)),
}
"""What errors call one value and several, and which they are."""


def resolved(annotation: Any, module: str) -> Any:
    """What an annotation of a module means; Any where that cannot be found out."""
    if annotation is inspect.Parameter.empty:
        return Any
    try:
        return eval(annotation, {}, _Names(module)) if isinstance(annotation, str) else annotation
    except Exception:  # names of packages that are not installed
        return Any


class _Names(dict[str, Any]):
    """The names of a module, those for type checkers among them."""

    def __init__(self, module: str) -> None:
        super().__init__()
        self._module = module

    def __missing__(self, name: str) -> Any:
        module, held = self._module, vars(sys.modules[self._module])
        if name not in held:
            module, name = _typing_imports(module)[name]
            held = vars(import_module(module))
        value = held[name]
        return resolved(value, module) if isinstance(value, str) else value


@functools.cache
def _typing_imports(module: str) -> dict[str, tuple[str, str]]:
    """Name → the module it is imported from by `if TYPE_CHECKING:`, and its name there."""
    tree = ast.parse(inspect.getsource(sys.modules[module]))
    blocks = [n for n in tree.body if isinstance(n, ast.If) and "TYPE_CHECKING" in ast.dump(n.test)]
    found = [s for b in blocks for s in b.body if isinstance(s, ast.ImportFrom) and s.module]
    return {a.asname or a.name: (str(s.module), a.name) for s in found for a in s.names}


def fits(value: Any, hint: Any) -> bool:
    """May a value be where this is declared? Of what is in containers lists and dicts are looked
    into."""
    kind, args = get_origin(hint) or hint, get_args(hint)
    if kind in (Union, types.UnionType):
        return any(fits(value, each) for each in args)
    if kind is Literal:
        return any(type(value) is type(each) and value == each for each in args)
    if kind is None or kind in _SCALARS:
        return _SCALARS[kind or type(None)][2](value)
    if is_typeddict(kind):
        return isinstance(value, Mapping)
    if not _is_instance(value, kind):
        return False
    if isinstance(value, Mapping) and len(args) == 2:
        given: Mapping[Any, Any] = value
        return all(fits(k, args[0]) and fits(v, args[1]) for k, v in given.items())
    is_list = _is_collection(kind) and isinstance(value, list | tuple | set | frozenset)
    if not is_list or not args:
        return True
    several: Collection[Any] = value
    if kind is tuple and Ellipsis not in args:
        return len(several) == len(args) and all(map(fits, several, args))
    return all(fits(v, args[0]) for v in several)


def _is_instance(value: Any, kind: Any) -> bool:
    if kind is Callable:
        return callable(value)
    if not isinstance(kind, type):
        return True
    if _is_collection(kind) and isinstance(value, str | bytes):
        return False
    try:
        return isinstance(value, (list, tuple) if kind in (list, tuple) else kind)
    except TypeError:  # a protocol that is for type checkers only
        return True


def _is_collection(kind: Any) -> bool:
    is_iterable = isinstance(kind, type) and issubclass(kind, Iterable)
    return is_iterable and not issubclass(kind, str | bytes | Mapping)


def described(hint: Any) -> str:
    """How errors call the values of a declaration."""
    kind, args = get_origin(hint) or hint, get_args(hint)
    if kind in (Union, types.UnionType):
        return ", or ".join(dict.fromkeys(map(described, args)))
    if kind is Literal:
        return " or ".join(map(repr, args))
    if kind is None or kind in _SCALARS:
        return _SCALARS[kind or type(None)][0]
    if kind is Callable:
        return "a function"
    if kind is os.PathLike:
        return "a path"
    if is_typeddict(kind) or (isinstance(kind, type) and issubclass(kind, Mapping)):
        return "a dict"
    if _is_collection(kind) and (kind in (list, tuple, set, frozenset) or inspect.isabstract(kind)):
        of = get_origin(args[0]) or args[0] if args else Any
        return f"a list of {_SCALARS[of][1]}" if of in _SCALARS else "a list"
    name = getattr(kind, "__name__", str(kind))
    return f"{'an' if name[0] in 'AEIO' else 'a'} {name}"
