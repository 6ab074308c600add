"""Mutation of ONNX models: of bytes, and of protobuf fields."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

NUMBERS = (
    0, 1, -1, 2, 3, 7, 8, 64, 255, 256, 4096, 65535, 1 << 20, 1 << 31, (1 << 31) - 1, -(1 << 31),
    1 << 32, 1 << 40, 1 << 62, (1 << 63) - 1, -(1 << 63),
)  # fmt: skip
FLOATS = (0.0, -0.0, 1.0, -1.0, 0.5, 1e-30, 1e30, float("inf"), float("-inf"), float("nan"))
TEXTS = ("", "x", "ai.onnx", "com.microsoft", "../x", "NOTSET", "SAME_UPPER", "constant", "é" * 9)
Change = Callable[[bytes, random.Random, Sequence[bytes]], bytes]


def mutated(seed: int, corpus: Sequence[bytes]) -> bytes:
    """A file of the corpus, changed a few times; the same for the same seed.

    Most changes of bytes end with the parser, so that two files of three are changed by fields.
    """
    rng = random.Random(seed)
    data = rng.choice(corpus)
    changes = BYTES if rng.random() < 0.35 else FIELDS
    for _ in range(rng.choice((1, 1, 1, 2, 3, 6))):
        data = rng.choice(changes)(data, rng, corpus)
    return data


# -- bytes --------------------------------------------------------------------------------------


def _flip(data: bytes, rng: random.Random, corpus: Sequence[bytes]) -> bytes:
    made = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 8)) if made else 0):
        made[rng.randrange(len(made))] ^= 1 << rng.randrange(8)
    return bytes(made)


def _cut(data: bytes, rng: random.Random, corpus: Sequence[bytes]) -> bytes:
    return data[: rng.randrange(len(data) + 1)]


def _drop(data: bytes, rng: random.Random, corpus: Sequence[bytes]) -> bytes:
    at = rng.randrange(len(data) + 1)
    return data[:at] + data[at + rng.randrange(1, 16) :]


def _insert(data: bytes, rng: random.Random, corpus: Sequence[bytes]) -> bytes:
    at = rng.randrange(len(data) + 1)
    return data[:at] + rng.randbytes(rng.randrange(1, 12)) + data[at:]


def _splice(data: bytes, rng: random.Random, corpus: Sequence[bytes]) -> bytes:
    other = rng.choice(corpus)
    start, at = rng.randrange(len(other) + 1), rng.randrange(len(data) + 1)
    return data[:at] + other[start : start + rng.randrange(1, 400)] + data[at:]


# -- fields -------------------------------------------------------------------------------------


def _fields(data: bytes, rng: random.Random, corpus: Sequence[bytes]) -> bytes:
    """One field of one message set, dropped, doubled, or taken from elsewhere in the model."""
    import onnx
    from google.protobuf.message import DecodeError

    model = onnx.ModelProto()
    try:
        model.ParseFromString(data)
        for _ in range(rng.choice((1, 1, 2, 4))):
            _change(model, rng)
        return model.SerializeToString()
    except (DecodeError, ValueError, TypeError, RecursionError):
        return data  # damaged before, or a value that the field cannot hold


def _messages(model: Any) -> list[Any]:
    found = [model]
    for message in found:
        for field, value in message.ListFields():
            if field.message_type is not None:
                found += list(value) if field.is_repeated else [value]
    return found


def _change(model: Any, rng: random.Random) -> None:
    """Messages are copied as bytes: one may be inside the one that it is a copy of."""
    messages = _messages(model)
    message = rng.choice([m for m in messages if m.DESCRIPTOR.fields])
    held = [f for f, _ in message.ListFields()]
    others = [f for f in message.DESCRIPTOR.fields if f.message_type is None]
    pool = held if held and (not others or rng.random() < 0.85) else others
    if not pool:
        return
    field = rng.choice(pool)
    if field.is_repeated:
        _change_list(getattr(message, field.name), field, rng, messages)
    elif field.message_type is not None:
        _change_message(message, field, rng, messages)
    else:
        setattr(message, field.name, _scalar(getattr(message, field.name), field, rng, messages))


def _change_list(values: Any, field: Any, rng: random.Random, messages: list[Any]) -> None:
    at = rng.randrange(len(values)) if len(values) else 0
    kind = rng.randrange(4)
    if kind == 0 and len(values):
        del values[at]
    elif field.message_type is not None:
        same = [m for m in messages if m.DESCRIPTOR is field.message_type]
        copy = rng.choice(same).SerializeToString() if same else b""
        into = values[at] if kind == 1 and len(values) else values.add()
        into.ParseFromString(copy)
    elif kind == 1 or not len(values):
        sample = values[at] if len(values) else None
        values.append(_scalar(sample, field, rng, messages))
    else:
        values[at] = _scalar(values[at], field, rng, messages)


def _change_message(message: Any, field: Any, rng: random.Random, messages: list[Any]) -> None:
    same = [m for m in messages if m.DESCRIPTOR is field.message_type]
    if rng.random() < 0.4 or not same:
        message.ClearField(field.name)
        return
    copy = rng.choice(same).SerializeToString()
    getattr(message, field.name).ParseFromString(copy)


def _scalar(old: Any, field: Any, rng: random.Random, messages: list[Any]) -> Any:
    match field.cpp_type:
        case field.CPPTYPE_STRING:
            return _text(old, field, rng, messages)
        case field.CPPTYPE_FLOAT | field.CPPTYPE_DOUBLE:
            return rng.choice(FLOATS)
        case field.CPPTYPE_BOOL:
            return rng.random() < 0.5
        case field.CPPTYPE_ENUM:
            return rng.choice([v.number for v in field.enum_type.values])
        case _:
            return _number(old, field, rng)


def _number(old: Any, field: Any, rng: random.Random) -> int:
    made = rng.choice(NUMBERS) if rng.random() < 0.6 else (old or 0) + rng.choice((-1, 1, 2, 10))
    bits = 31 if field.cpp_type == field.CPPTYPE_INT32 else 63
    is_signed = field.cpp_type in (field.CPPTYPE_INT32, field.CPPTYPE_INT64)
    return max(-(1 << bits) if is_signed else 0, min(made, (1 << bits) - 1))


def _text(old: Any, field: Any, rng: random.Random, messages: list[Any]) -> Any:
    is_bytes = field.type == field.TYPE_BYTES
    if is_bytes and isinstance(old, bytes) and rng.random() < 0.7:
        return _flip(old, rng, ()) if rng.random() < 0.6 else _cut(old, rng, ())
    named = [t for m in messages for t in _texts(m, field.name)]
    made = rng.choice(named) if named and rng.random() < 0.7 else rng.choice(TEXTS)
    text = made if isinstance(made, str) else "x"
    return text.encode() if is_bytes else text


def _texts(message: Any, name: str) -> list[Any]:
    """What fields of this name hold; inputs may name outputs, and outputs inputs."""
    names = {name, "output", "name"} if name in ("input", "output", "name") else {name}
    found: list[Any] = []
    for field, value in message.ListFields():
        if field.name in names and field.message_type is None:
            found += list(value) if field.is_repeated else [value]
    return found


BYTES: tuple[Change, ...] = (_flip, _flip, _cut, _drop, _insert, _splice)
FIELDS: tuple[Change, ...] = (*(_fields,) * 9, _flip)
