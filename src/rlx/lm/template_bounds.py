"""jinja2 within bounds: every operation of a template costs what it handles, and there is so much.

jinja2's sandbox keeps a template from Python, and lets it run for ever and take all memory: nested
loops, macros that call themselves, texts and lists that are doubled, powers, widths of a format.
Here a body pays for its nodes each time it is run, an operation for the sizes of its operands, and
nothing is evaluated before a conversation is rendered. Lists and dicts are weighed as trees, once:
they never change.
"""

from __future__ import annotations

import functools
import re
import time
from collections.abc import Callable, Generator, ItemsView, KeysView, Mapping, ValuesView
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from types import BuiltinMethodType, FunctionType, MethodType, ModuleType
from typing import Any

from jinja2 import pass_context

MAX_STEPS, MAX_CPU_S = 1 << 17, 1.0
"""Nodes that are run and pieces of operands that are handled; seconds of the rendering thread."""
MESSAGE_STEPS, MESSAGE_CPU_S = 256, 2e-3
"""What each message of a conversation allows besides."""
MAX_CHARS, MAX_WRITTEN = 1 << 24, 1 << 26
"""Of one value as text; of all that is written, captured texts included."""
MAX_ITEMS, MAX_INT = 1 << 16, 1 << 16
"""Of a list; of a number that is a width or count."""
MAX_BITS, MAX_DEPTH = 512, 96
CHARS_PER_STEP, ITEMS_PER_STEP, SCALAR_CHARS = 4096, 64, 64
STR = frozenset((
    "strip", "lstrip", "rstrip", "split", "rsplit", "splitlines", "startswith", "endswith",
    "replace", "upper", "lower", "title", "capitalize", "swapcase", "casefold", "find", "rfind",
    "index", "rindex", "count", "join", "partition", "rpartition", "removeprefix", "removesuffix",
    "isdigit",
    "isalpha", "isalnum", "isspace", "isupper", "islower", "isnumeric", "isdecimal", "istitle",
    "isascii", "isprintable", "isidentifier", "zfill", "ljust", "rjust", "center", "format",
))  # fmt: skip
METHODS: Mapping[type, frozenset[str]] = {
    str: STR, list: frozenset(("index", "count")), tuple: frozenset(("index", "count")),
    dict: frozenset(("get", "items", "keys", "values")), range: frozenset(("index", "count")),
}  # fmt: skip
FILTERS = frozenset((
    "abs", "batch", "capitalize", "center", "count", "d", "default", "dictsort", "e", "escape",
    "first", "float", "format", "groupby", "indent", "int", "items", "join", "last", "length",
    "list", "lower", "map", "max", "min", "reject", "rejectattr", "replace", "reverse", "round",
    "safe", "select", "selectattr", "slice", "sort", "string", "sum", "title", "tojson", "trim",
    "truncate", "unique", "upper", "wordcount",
))  # fmt: skip
FORMAT = re.compile(r"[0-9]{5,}|%[^a-zA-Z%]*\*|\{[^{}]*\{", re.ASCII)
"""Widths of five digits and more, or that are operands."""
LINE_ENDS = "\n\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029"


class Exceeded(Exception):
    """A template does more than a conversation takes."""


@dataclass(slots=True)
class Budget:
    """What rendering may still do."""

    steps: int = MAX_STEPS
    written: int = MAX_WRITTEN
    end_s: float = field(default_factory=lambda: time.thread_time() + MAX_CPU_S)
    weights: dict[int, tuple[Any, int]] = field(default_factory=dict[int, tuple[Any, int]])
    """Address of a list or dict → itself, so that it stays, and the characters of it as a tree."""

    def spend(self, steps: int) -> None:
        self.steps -= steps
        if self.steps < 0:
            raise Exceeded("it takes too many steps")
        if time.thread_time() > self.end_s:
            raise Exceeded(f"it takes more than {MAX_CPU_S} s")

    def write(self, chars: int) -> None:
        self.written -= chars
        if self.written < 0:
            raise Exceeded("it writes too much")
        self.spend(chars // CHARS_PER_STEP)

    def weigh(self, value: Any, depth: int = 0) -> int:
        """How many characters a value is about, as text."""
        match value:
            case str() | bytes():
                return len(value)
            case int():
                return SCALAR_CHARS + value.bit_length() // 3
            case range():
                return SCALAR_CHARS * len(value)
            case list() | tuple() | dict():
                known = self.weights.get(id(value))
                return known[1] if known else self._weigh_items(value, depth)
            case KeysView() | ValuesView() | ItemsView():
                return self._weigh_items(list(value), depth)
            case _:
                return SCALAR_CHARS

    def _weigh_items(self, value: Any, depth: int) -> int:
        if depth > MAX_DEPTH:
            raise Exceeded("its values are nested too deeply")
        items = [*value, *value.values()] if isinstance(value, dict) else value
        self.spend(len(value) // 16)
        total = SCALAR_CHARS + sum(self.weigh(item, depth + 1) + 2 for item in items)
        if total > MAX_CHARS:
            raise Exceeded("it makes too large a value")
        self.weights[id(value)] = value, total
        return total


BUDGET: ContextVar[Budget] = ContextVar("budget")


@contextmanager
def budget(messages: int) -> Generator[Budget]:
    """What is rendered inside has this much, all together, for so many messages."""
    found = Budget(MAX_STEPS + messages * MESSAGE_STEPS)
    found.end_s += messages * MESSAGE_CPU_S
    token = BUDGET.set(found)
    try:
        yield found
    finally:
        BUDGET.reset(token)


def weighed(*values: Any) -> int:
    """Pay for reading values from end to end; how many characters they are."""
    held = BUDGET.get()
    total = sum(map(held.weigh, values))
    if total > 2 * MAX_CHARS:
        raise Exceeded("it makes too large a value")
    held.spend(1 + total // CHARS_PER_STEP)
    return total


def copied(*values: Any) -> int:
    """Pay for copying values, of lists and dicts the items alone."""
    held = BUDGET.get()
    total = sum(map(held.weigh, values))
    texts = sum(len(v) for v in values if isinstance(v, str))
    items = sum(len(v) for v in values if isinstance(v, list | tuple | dict | range))
    held.spend(1 + texts // CHARS_PER_STEP + items // ITEMS_PER_STEP)
    return total


def created(value: Any) -> Any:
    """A value of an operation, when it is no larger than may be."""
    if isinstance(value, list | tuple) and len(value) > MAX_ITEMS:
        raise Exceeded("it makes too long a list")
    if isinstance(value, int) and value.bit_length() > MAX_BITS:
        raise Exceeded("it makes too large a number")
    if copied(value) > MAX_CHARS:
        raise Exceeded("it makes too large a value")
    return value


def allow(chars: int) -> None:
    """Refuse a text of so many characters before it is made."""
    if chars > MAX_CHARS:
        raise Exceeded("it makes too long a text")
    BUDGET.get().write(chars)


# -- operators -------------------------------------------------------------------------------------


def combined(operator: str, apply: Callable[[Any, Any], Any], left: Any, right: Any) -> Any:
    """A binary operator on values, whose result is bounded before it is computed."""
    size = (weighed if operator == "%" else copied)(left, right)
    match operator, left, right:
        case "*", (str() | list() | tuple()), int():
            _repeated(left, right)
        case "*", int(), (str() | list() | tuple()):
            _repeated(right, left)
        case "*" | "**", int() | float(), int() | float():
            bits = _bits(left) * (abs(right) if operator == "**" else 1) + _bits(right)
            if not bits <= MAX_BITS:
                raise Exceeded("it makes too large a number")
        case "%", str(), _:
            _check_format(left)
            allow(size + MAX_INT)
        case "+", str(), str():
            allow(size)
        case "+", (list() | tuple()), (list() | tuple()) if size > MAX_CHARS:
            raise Exceeded("it makes too large a value")
        case _:
            pass
    return created(apply(left, right))


def _bits(value: float) -> int:
    return value.bit_length() if isinstance(value, int) else 64


def _repeated(value: Any, count: int) -> None:
    allow(max(0, count) * max(1, BUDGET.get().weigh(value)))
    if not isinstance(value, str) and len(value) * count > MAX_ITEMS:
        raise Exceeded("it makes too long a list")


def _check_format(text: str) -> None:
    if FORMAT.search(text):
        raise Exceeded("it formats by a width that is too large, or not written out")


# -- filters, tests and methods --------------------------------------------------------------------


def bounded(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """A filter or test of jinja2 on values whose sizes are paid for. None is evaluated before a
    template is rendered, as it takes the context."""
    passes = getattr(function, "jinja_pass_arg", None)
    first = None if passes is None else passes.name

    @pass_context
    @functools.wraps(function)
    def applied(context: Any, *values: Any, **named: Any) -> Any:
        own = {"context": context, "environment": context.environment}
        before = [] if first is None else [own.get(first, context.eval_ctx)]
        if name in CONSTANT_TIME:
            BUDGET.get().spend(1)
            return function(*before, *values, **named)
        size = (copied if name in COPYING else weighed)(*values, *named.values())
        _check_numbers([*values[1:], *named.values()])
        _check_result(name, values, named, size)
        return created(_listed(function(*before, *values, **named)))

    if hasattr(applied, "jinja_async_variant"):
        del applied.jinja_async_variant  # pyright: ignore
    applied.jinja_pass_arg = pass_context(lambda: None).jinja_pass_arg  # pyright: ignore
    return applied


COPYING = frozenset((
    "list", "reverse", "map", "select", "reject", "selectattr", "rejectattr", "batch", "slice",
))  # fmt: skip
"""Filters that do not look into items, or do by other filters and tests."""
CONSTANT_TIME = frozenset((
    "length", "count", "first", "last", "default", "d", "items", "defined", "undefined", "string",
    "mapping", "number", "iterable", "sequence", "none", "boolean", "true", "false", "integer",
    "float", "callable", "sameas",
))  # fmt: skip
"""Filters and tests that take the same however large their operand is; `float` is a test too."""


def _listed(made: Any) -> Any:
    """Of a generator its items, which are paid for one by one."""
    if not hasattr(made, "__next__"):
        return made
    items: list[Any] = []
    for item in made:
        if len(items) >= MAX_ITEMS:
            raise Exceeded("it makes too long a list")
        BUDGET.get().spend(1)
        items.append(item)
    return items


def _check_numbers(values: list[Any]) -> None:
    if any(isinstance(v, int) and abs(v) > MAX_INT for v in values):
        raise Exceeded("it gives a width or count that is too large")


def _check_result(name: str, values: Any, named: Mapping[str, Any], size: int) -> None:
    """What would be larger than its operands together is refused before it is made."""
    subject = values[0] if values else ""
    numbers = [v for v in (*values[1:], *named.values()) if isinstance(v, int)]
    texts = [v for v in (*values[1:], *named.values()) if isinstance(v, str)]
    widest = max([0, *numbers, *map(len, texts)])
    match name:
        case "indent":
            allow((str(subject).count("\n") + 1) * (widest + 1) + size)
        case "join":
            allow((_count(subject) + 1) * (widest + 1) + size)
        case "replace":
            allow(_replaced(str(subject), *texts[:2]) if len(texts) > 1 else size)
        case "tojson":
            allow(size * (min(widest, 64) + 2))
            if widest > 64:
                raise Exceeded("it indents by too much")
        case "format" | "%":
            _check_format(str(subject))
        case "sum":
            if any(isinstance(v, list | tuple | str) for v in (*values[1:2], named.get("start"))):
                raise Exceeded("it sums what are no numbers")
        case _ if isinstance(subject, str) and name not in TEXT:
            if len(subject) > MAX_ITEMS:
                raise Exceeded("it makes too long a list")
        case _:
            pass


TEXT = frozenset((
    "capitalize", "center", "count", "d", "default", "e", "escape", "float", "first", "int",
    "length", "lower", "replace", "string", "title", "trim", "truncate", "upper", "wordcount",
    "safe",
))  # fmt: skip
"""Filters that do not take a text letter by letter."""


def _count(value: Any) -> int:
    return len(value) if hasattr(value, "__len__") else MAX_ITEMS


def _replaced(text: str, old: str, new: str) -> int:
    return len(text) + (text.count(old) if old else len(text) + 1) * len(new)


def called(obj: Any, args: tuple[Any, ...], named: Mapping[str, Any]) -> tuple[Any, ...]:
    """The arguments of a method of a text, list or dict, where it may be called with them."""
    size = copied(*args, *named.values())
    if isinstance(obj, BuiltinMethodType | MethodType | FunctionType):
        inner = getattr(obj, "__wrapped__", obj)
        owner, name = getattr(inner, "__self__", None), getattr(inner, "__name__", "")
        kind = next((k for k in METHODS if isinstance(owner, k)), None)
        if kind is not None:
            if name not in METHODS[kind]:
                raise Exceeded(f"it calls the method {name!r}")
            return _bounded_call(name, owner, args, named, size + _read(owner))
        if isinstance(obj, BuiltinMethodType) and not isinstance(owner, ModuleType | None):
            raise Exceeded(f"it calls the method {name!r}")
    return args


def _read(owner: Any) -> int:
    """Pay for what a method reads of its owner: a dict's look up, others read from end to end."""
    return copied() if isinstance(owner, dict) else weighed(owner)


def _bounded_call(
    name: str, owner: Any, args: tuple[Any, ...], named: Mapping[str, Any], size: int
) -> tuple[Any, ...]:
    match name:
        case "split" | "rsplit" if not named and len(args) < 2:
            return (*(args or (None,)), MAX_ITEMS)
        case "split" | "rsplit":
            allow(size * 8)
        case "splitlines" if sum(map(owner.count, LINE_ENDS)) > MAX_ITEMS:
            raise Exceeded("it makes too long a list")
        case "replace" if len(args) > 1:
            allow(_replaced(owner, str(args[0]), str(args[1])))
        case "join":
            allow((_count(args[0]) if args else 0) * (len(owner) + 1) + size)
        case "format":
            _check_format(owner)
            allow(size + (owner.count("{") + 1) * MAX_INT)
        case "zfill" | "ljust" | "rjust" | "center":
            _check_numbers(list(args))
        case _:
            pass
    return args
