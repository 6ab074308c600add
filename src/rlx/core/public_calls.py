"""Public functions and classes: a call with arguments that its signature does not take, or that are
outside of what is declared for them, is one `rlx.Error`, which states the call that works.

Calls that succeed are not slowed down: arguments are compared with the signature, and with its
annotations, once something has failed.
"""

from __future__ import annotations

import functools
import inspect
import os
import re
import reprlib
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from types import FrameType
from typing import Any, ParamSpec, TypeVar

from rlx.core.errors import CallError, Error

P = ParamSpec("P")
R = TypeVar("R")
Class = TypeVar("Class", bound=type)
_PACKAGE = str(Path(__file__).parents[1]) + os.sep
_MARK = "__rlx_public__"


def public(function: Callable[P, R]) -> Callable[P, R]:
    """A function of the public API."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except Error:
            raise
        except Exception:
            raise_misuse(function, args, kwargs)
            raise

    return marked_public(call)


def marked_public(function: Callable[P, R]) -> Callable[P, R]:
    """One that raises what is stated here."""
    setattr(function, _MARK, True)
    return function


def public_class(cls: Class) -> Class:
    """A class of the public API: its constructor and its public methods. Operators and `__call__`
    stay as they are: those take what Python gives them."""
    for name, held in list(vars(cls).items()):
        kind = type(held) if isinstance(held, staticmethod | classmethod) else None
        function: Any = held.__func__ if kind else held
        is_public = name == "__init__" or not name.startswith("_")
        if is_public and inspect.isfunction(function) and not hasattr(function, _MARK):
            setattr(cls, name, kind(public(function)) if kind else public(function))
    return cls


def warn_user(text: str) -> None:
    """A warning at the line of the user's that calls rlx."""
    warnings.warn(text, stacklevel=user_frame()[1])


def user_frame() -> tuple[FrameType, int]:
    """The innermost frame outside of rlx, and how many calls it is away from the caller of this."""
    level, frame = 0, sys._getframe()  # pyright: ignore[reportPrivateUsage]
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        level, frame = level + 1, frame.f_back
    return frame, level


def raise_misuse(
    function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> None:
    """Raise where the arguments of a call that failed do not fit the signature, or what it declares
    for one of them; an exception of another cause stays what it is."""
    from rlx.core.annotations import described, fits, resolved

    signature = require_signature(function, args, kwargs)
    for name, given in signature.arguments.items():
        parameter = signature.signature.parameters[name]
        hint = resolved(parameter.annotation, function.__module__)
        for value in _each(parameter, given):
            if not fits(value, hint):
                called, shown = (
                    _name(function, *_bound(signature.signature, args)),
                    reprlib.repr(value),
                )
                text = f"{called}(): {name} is {shown}. Give {described(hint)}."
                raise CallError(text) from None


def require_signature(
    function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> inspect.BoundArguments:
    """The arguments by name; an error where the signature does not take them."""
    signature = inspect.signature(function)
    try:
        return signature.bind(*args, **kwargs)
    except TypeError as why:
        bound = _bound(signature, args)
        takes = list(signature.parameters.values())[len(bound) :]
        name, count = _name(function, *bound), len(args) - len(bound)
        text = f"{name}(): {_reason(str(why), takes, count)} {_next(name, takes, kwargs)}"
        raise CallError(text) from None


def _bound(signature: inspect.Signature, args: Sequence[Any]) -> Sequence[Any]:
    """The object or class that a method is called on."""
    return args[: next(iter(signature.parameters), "") in ("self", "cls")]


def _each(parameter: inspect.Parameter, given: Any) -> Sequence[Any]:
    match parameter.kind:
        case parameter.VAR_POSITIONAL:
            return given
        case parameter.VAR_KEYWORD:
            return list(given.values())
        case _:
            return (given,)


def _name(function: Callable[..., Any], *bound: Any) -> str:
    """As users write it: a method of the class that they have, not of the one that defines it."""
    if not bound:
        return function.__qualname__
    if function.__name__ == "__call__":
        return getattr(bound[0], "__name__", type(bound[0]).__name__)
    owner = (bound[0] if isinstance(bound[0], type) else type(bound[0])).__name__
    return owner if function.__name__ == "__init__" else f"{owner}.{function.__name__}"


def _reason(why: str, takes: Sequence[inspect.Parameter], count: int) -> str:
    if why.startswith("too many"):
        most = sum(p.kind <= p.POSITIONAL_OR_KEYWORD for p in takes)
        return f"{count} arguments are given by position, and it takes {most or 'none'}."
    if lacking := re.search(r"required .*argument: '(.*)'", why):
        return f"no value for {lacking[1]!r}."
    unknown = re.search(r"unexpected keyword argument '(.*)'", why)
    if unknown is None:
        return f"{why}."
    near = get_close_matches(unknown[1], [p.name for p in takes], 1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    return f"there is no argument {unknown[1]!r}.{hint}"


def _next(name: str, takes: Sequence[inspect.Parameter], kwargs: Mapping[str, Any]) -> str:
    """The call that works: by a dict, where names that a user chose are given as keywords."""
    short, unknown = name.rpartition(".")[2], [k for k in kwargs if all(k != p.name for p in takes)]
    first = str(takes[0].annotation) if unknown and takes else ""
    if first.startswith(("Mapping", "Iterable[Mapping")):
        given = f"{{{unknown[0]!r}: …}}"
        return f"Write {short}({given if first[0] == 'M' else f'[{given}]'})."
    return f"Write {short}({', '.join(map(_shown, takes))})."


def _shown(parameter: inspect.Parameter) -> str:
    """As in a signature; the value of a default is of no use here."""
    stars = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
    optional = "=…" if parameter.default is not parameter.empty else ""
    return f"{stars}{parameter.name}{optional}"
