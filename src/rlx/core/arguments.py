"""Validation of the arguments of public calls.

A wrong type is the caller's mistake and has one error, which names the argument, what it is, and
what to give; it is not whatever the first line that uses it happens to raise. So are arguments that
a call does not take, too many of them or too few: the error states the call that works.
"""

from __future__ import annotations

import functools
import os
import reprlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar, cast

from rlx.core.arrays import is_array
from rlx.core.errors import Error, GraphError
from rlx.core.intervals import whole
from rlx.core.public_calls import marked_public, raise_misuse, require_signature

P = ParamSpec("P")
R = TypeVar("R")
MAX_COUNT = 1 << 20
MAX_SECONDS = 24 * 3600


@dataclass(frozen=True, slots=True)
class Kind:
    """Values that an argument may have, and how errors call them."""

    expected: str
    accepts: Callable[[Any], bool]

    def __or__(self, other: Kind) -> Kind:
        return Kind(
            f"{self.expected}, or {other.expected}",
            lambda v: self.accepts(v) or other.accepts(v),
        )

    def check(self, name: str, value: Any, error: type[Error] = Error) -> None:
        if not self.accepts(value):
            raise error(f"{name} is {reprlib.repr(value)}. Give {self.expected}.")


def _is_count(value: Any) -> bool:
    number = whole(value)
    return number is not None and 1 <= number <= MAX_COUNT


def _is_seconds(value: Any) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and 0 <= value <= MAX_SECONDS


def _is_path(value: Any) -> bool:
    if not isinstance(value, str | os.PathLike):
        return False
    text: Any = os.fspath(value)  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
    return isinstance(text, str) and text != "" and "\0" not in text and _is_encodable(text)


def _is_encodable(text: str) -> bool:
    try:
        os.fsencode(text)
    except UnicodeEncodeError:
        return False
    return True


NONE = Kind("None", lambda v: v is None)
FLAG = Kind("True or False", lambda v: isinstance(v, bool))
TEXT = Kind("a string", lambda v: isinstance(v, str))
TEXTS = Kind(
    "a list of strings",
    lambda v: isinstance(v, list | tuple) and all(isinstance(t, str) for t in cast(Any, v)),
)
COUNT = Kind(f"a whole number from 1 to {MAX_COUNT:,}", _is_count)
WHOLE = Kind("a whole number", lambda v: whole(v) is not None)
SECONDS = Kind(f"a number of seconds, at most {MAX_SECONDS:,}", _is_seconds)
FUNCTION = Kind("a function", callable)
MAPPING = Kind("a dict by name", lambda v: isinstance(v, Mapping))
PATH = Kind("a path that is not empty and has no NUL in it: a string or an os.PathLike", _is_path)
SEVERAL = Kind(
    "a list or another iterable", lambda v: isinstance(v, Iterable) and not isinstance(v, str)
)
CALLS = Kind(
    "a list of dicts, one for each call",
    lambda v: isinstance(v, Iterable) and not isinstance(v, str | bytes | Mapping),
)
INPUTS = Kind(
    "an array, a list of arrays, or a dict of them by name",
    lambda v: isinstance(v, Mapping | list | tuple) or is_array(v),
)


def instance(*types: type) -> Kind:
    """Values of these classes."""
    names = " or ".join(f"a rlx.{t.__name__}" for t in types)
    return Kind(names, lambda v: isinstance(v, types))


def check_node(op: Any, inputs: Any, attrs: Any) -> None:
    """The arguments of a node: an op or its name, operands, and attributes by name."""
    if not isinstance(op, str) and not hasattr(op, "operand_shapes"):
        raise GraphError(f"the op is {reprlib.repr(op)}. Give the name of one.")
    if not isinstance(inputs, tuple | list):
        SEVERAL.check("inputs", inputs, GraphError)
    is_named = isinstance(attrs, Mapping) and all(isinstance(k, str) for k in attrs)  # pyright: ignore[reportUnknownVariableType]
    if attrs is not None and not is_named:
        raise GraphError(f"attrs is {reprlib.repr(attrs)}. Give a dict by name.")


def checked_by(error: type[Error], **kinds: Kind) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """As `takes`, with another error: what is wrong with a graph is a GraphError."""

    def decorated(function: Callable[P, R]) -> Callable[P, R]:
        code = function.__code__  # pyright: ignore[reportFunctionMemberAccess]
        names = code.co_varnames[: code.co_argcount]

        @functools.wraps(function)
        def checking(*args: P.args, **kwargs: P.kwargs) -> R:
            for name, value in (*zip(names, args), *kwargs.items()):
                if name in kinds and not kinds[name].accepts(value):
                    require_signature(function, args, kwargs)
                    kinds[name].check(name, value, error)
            try:
                return function(*args, **kwargs)
            except Error:
                raise
            except Exception:
                raise_misuse(function, args, kwargs)
                raise

        return marked_public(checking)

    return decorated


def takes(**kinds: Kind) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Arguments of these names are of these kinds."""
    return checked_by(Error, **kinds)
