"""Operators that make strings or look inside them: the host runs them.

Patterns are those of RE2, in which classes such as \\w are of ASCII: `re` reads them so, too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from rlx import ops
from rlx.core.dim import product
from rlx.core.dtype import DType
from rlx.core.errors import Error, GraphError
from rlx.core.shape import Shape, broadcast
from rlx.frontends.onnx.handlers import MICROSOFT, codes, handles
from rlx.frontends.onnx.host_calls import Result, on_host
from rlx.frontends.onnx.id_tensors import element_of, with_codes
from rlx.frontends.onnx.node_call import Call
from rlx.frontends.onnx.strings import TEXT, Strings, objects
from rlx.frontends.onnx.values import Coded, Value
from rlx.ir.mir import Node

Array = np.ndarray[Any, Any]
MAKES, LOOKS = "it makes strings, in Python", "it looks inside strings, in Python"


def texts_shape(call: Call, number: int) -> Shape:
    """The shape of an operand that is to be strings."""
    if element_of(call.value(number)) is not TEXT:
        raise call.refused(f"operand {number} is numbers, expected strings")
    return with_codes(call, (number,)).shape(number)


def _each(strings: Strings, ids: Array, change: Any) -> Array:
    """Another string for each, once for each that is there."""
    distinct, inverse = np.unique(ids, return_inverse=True)
    made = strings.ids(change(t) for t in strings.decode(distinct).tolist())
    return np.array(made, np.int64)[inverse].reshape(ids.shape)


# -- one string of each ---------------------------------------------------------------------------


@handles("StringConcat")
@codes
def joined(call: Call) -> Value:
    dims = broadcast(*(texts_shape(call, i).dims for i in range(2)))
    operands = [call.value(i) for i in range(2)]
    return on_host(call, _joined, operands, [Result(TEXT, dims)], MAKES)[0]


def _joined(strings: Strings, left: Array, right: Array) -> tuple[Array]:
    pairs = np.broadcast_arrays(strings.decode(left), strings.decode(right))
    made = [a + b for a, b in zip(*(p.reshape(-1).tolist() for p in pairs))]
    return (np.array(strings.ids(made), np.int64).reshape(pairs[0].shape),)


@handles("RegexFullMatch")
@codes
def full_match(call: Call) -> Value:
    pattern = call.attr("pattern", "")
    _compiled(call, pattern)
    result = Result(DType.BOOL, texts_shape(call, 0).dims)
    return on_host(call, _matched, [call.value(0)], [result], LOOKS, pattern=pattern)[0]


def _compiled(call: Call, pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern, re.ASCII)
    except (re.error, RecursionError, OverflowError) as error:
        raise call.unsupported(f"Python does not read its pattern ({error})") from None


def _matched(strings: Strings, ids: Array, pattern: str) -> tuple[Array]:
    found = re.compile(pattern, re.ASCII)
    distinct, inverse = np.unique(ids, return_inverse=True)
    fits = [found.fullmatch(t) is not None for t in strings.decode(distinct).tolist()]
    return (np.array(fits, bool)[inverse].reshape(ids.shape),)


# -- some strings of each -------------------------------------------------------------------------


@handles("StringSplit")
@codes
def split(call: Call) -> tuple[Value, ...]:
    dims = texts_shape(call, 0).dims
    results = [Result(TEXT, (*dims, None)), Result(DType.I64, dims)]
    options = {"delimiter": call.attr("delimiter") or None, "most": call.attr("maxsplit", -1)}
    return on_host(call, _split, [call.value(0)], results, MAKES, **options)


def _split(strings: Strings, ids: Array, delimiter: str | None, most: int) -> tuple[Array, Array]:
    parts = [t.split(delimiter, most) for t in strings.decode(ids).reshape(-1).tolist()]
    counts = np.array([len(p) for p in parts], np.int64).reshape(ids.shape)
    return _padded(strings, parts, ids.shape, ""), counts


def _padded(
    strings: Strings, rows: Sequence[Sequence[str]], dims: Sequence[int], pad: str
) -> Array:
    """Rows of strings as one tensor, the short ones filled up."""
    width = max(map(len, rows), default=0)
    made = np.full((len(rows), width), strings.intern(pad), np.int64)
    for row, texts in zip(made, rows):
        row[: len(texts)] = strings.ids(texts)
    return made.reshape(*dims, width)


CASES = {"NONE": str, "LOWER": str.lower, "UPPER": str.upper}


@handles("StringNormalizer")
@codes
def normalise(call: Call) -> Value:
    """Other cases, and stop words left out: of these, how many there are is data."""
    shape, stop = texts_shape(call, 0), call.attr("stopwords", ())
    if shape.rank not in (1, 2) or (shape.rank == 2 and stop and shape.dims[0] != 1):
        raise call.unsupported(f"operand 0 is {list(shape.dims)}, expected [C] or [1, C]")
    case, is_sensitive = call.attr("case_change_action", "NONE"), call.attr("is_case_sensitive", 0)
    if case not in CASES:
        raise GraphError(f"{call.label}: case_change_action {case[:40]!r} is unknown")
    options = {"case": case, "stop": sorted(set(stop)), "is_sensitive": bool(is_sensitive)}
    dims = (*shape.dims[:-1], None) if stop else shape.dims
    return on_host(call, _normalised, [call.value(0)], [Result(TEXT, dims)], MAKES, **options)[0]


def _normalised(
    strings: Strings, ids: Array, case: str, stop: Iterable[str], is_sensitive: bool
) -> tuple[Array]:
    """Where all are left out, one empty string stays."""
    if stop:
        folded = str if is_sensitive else str.lower
        words = {folded(w) for w in stop}
        texts = strings.decode(ids).reshape(-1).tolist()
        kept = [t for t in texts if folded(t) not in words] or [""]
        ids = np.array(strings.ids(kept), np.int64).reshape(*ids.shape[:-1], -1)
    return (_each(strings, ids, CASES[case]),)


# -- strings and numbers --------------------------------------------------------------------------


def from_numbers(call: Call, x: Node) -> Value:
    """Cast of numbers to strings."""
    result = Result(TEXT, x.shape.dims)
    kind = x.shape.dtype.value
    return on_host(call, _written, [x], [result], MAKES, kind=kind)[0]


def _written(strings: Strings, array: Array, kind: str) -> tuple[Array]:
    texts = [_digits(v, kind) for v in array.reshape(-1).tolist()]
    return (np.array(strings.ids(texts), np.int64).reshape(array.shape),)


DIGITS = 8
"""What onnxruntime writes of a float, of any size."""


def _digits(value: Any, kind: str) -> str:
    if not DType.of(kind).is_float:
        return str(int(value))
    if value != value:
        return "NaN"
    if value in (float("inf"), float("-inf")):
        return "INF" if value > 0 else "-INF"
    return f"{value:.{DIGITS}g}"


def to_numbers(call: Call, value: Value, to: DType) -> Node:
    """Cast of strings to numbers."""
    dims = texts_shape(call, 0).dims
    result = Result(to, dims)
    made = on_host(call, _read, [value], [result], LOOKS, kind=to.value)[0]
    return call.as_node(made)


def _read(strings: Strings, ids: Array, kind: str) -> tuple[Array]:
    """Whole numbers to the last digit; others by way of f64."""
    dtype = DType.of(kind)
    read = _whole if dtype.is_integer else float
    distinct, inverse = np.unique(ids, return_inverse=True)
    numbers = [_number(t, read, dtype) for t in strings.decode(distinct).tolist()]
    return (np.array(numbers, dtype.numpy)[inverse].reshape(ids.shape),)


def _number(text: str, read: Any, dtype: DType) -> Any:
    try:
        value = bool(float(text)) if dtype is DType.BOOL else read(text)
        return np.array(value, dtype.numpy)[()]
    except (ValueError, OverflowError):
        raise Error(f"{text[:40]!r} is no {dtype.name.lower()}") from None


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        return int(float(text))


# -- strings in order -----------------------------------------------------------------------------


def ranks(call: Call, value: Value) -> Node:
    """Numbers that are in the order of the strings, equal where those are."""
    result = Result(DType.I64, texts_shape(call, 0).dims)
    return call.as_node(on_host(call, _ranked, [value], [result], LOOKS)[0])


def _ranked(strings: Strings, ids: Array) -> tuple[Array]:
    distinct, inverse = np.unique(ids, return_inverse=True)
    order = np.argsort(objects([t.encode() for t in strings.decode(distinct).tolist()]))
    places = np.empty(len(order), np.int64)
    places[order] = np.arange(len(order))
    return (places[inverse].reshape(ids.shape),)


def unique_texts(call: Call, unique: Any) -> tuple[Value, ...]:
    """Which strings there are: by their ids in order of first occurrence, else by their ranks."""
    held = call.as_node(with_codes(call, (0,)).value(0))
    keys = ranks(call, call.value(0)) if call.attr("sorted", 1) else held
    _, first, inverse, counts = unique(keys)
    axis = call.attr("axis")
    rows = ops.reshape(held, dims=(product(held.shape.dims),)) if axis is None else held
    at = 0 if axis is None else call.axis(axis, held.shape.rank)
    return Coded(ops.gather(rows, first, axis=at), TEXT), first, inverse, counts


# -- tokens ---------------------------------------------------------------------------------------


@handles("Tokenizer", domain=MICROSOFT)
@codes
def tokens(call: Call) -> Value:
    """Strings split into tokens, as in onnxruntime: by separators, or by a regular expression."""
    shape = texts_shape(call, 0)
    if shape.rank not in (1, 2):
        raise call.unsupported(f"operand 0 is {list(shape.dims)}, expected [C] or [N, C]")
    separators, expression = call.attr("separators"), call.attr("tokenexp")
    if (separators is None) == (expression is None):
        raise GraphError(f"{call.label}: it takes either separators or tokenexp")
    for pattern in (expression,) if separators is None else separators:
        _compiled(call, pattern)
    options = {
        "separators": separators, "expression": expression, "pad": call.required("pad_value"),
        "is_marked": bool(call.required("mark")), "least": call.required("mincharnum"),
    }  # fmt: skip
    result = Result(TEXT, (*shape.dims, None))
    return on_host(call, _tokens, [call.value(0)], [result], MAKES, **options)[0]


START, END = "\x02", "\x03"


def _tokens(
    strings: Strings, ids: Array, separators: Sequence[str] | None, expression: str | None,
    pad: str, is_marked: bool, least: int,
) -> tuple[Array]:  # fmt: skip
    split = _splitter(separators, expression)
    rows = [
        [t for t in split(text) if len(t) >= least]
        for text in strings.decode(ids).reshape(-1).tolist()
    ]
    if is_marked:
        rows = [[START, *row, END] for row in rows]
    return (_padded(strings, rows, ids.shape, pad),)


def _splitter(separators: Sequence[str] | None, expression: str | None) -> Any:
    if expression is not None:
        found = re.compile(expression, re.ASCII)
        return lambda text: [m.group() for m in found.finditer(text) if m.group()]
    assert separators is not None
    if list(separators) == [""]:
        return list
    whole = re.compile("|".join(f"(?:{s})" for s in separators), re.ASCII)
    return lambda text: [t for t in whole.split(text) if t]
