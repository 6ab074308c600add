"""Where torch's tensors keep what native code reads of them, and whether they do so here.

What a tensor is comes from DLPack's exchange interface. Two facts do not: whether its values are
stored conjugated or negated, and whether they were changed. Their places are looked up in known
tensors by what torch says of them in Python; where one is not found, calls are made in Python.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from rlx.core.exchange import ArrayClass, Guard, Versions, array_class, described
from rlx.frontends.torch.namespaces import torch

_IMPL_WORDS, _STORAGE_WORDS, _OBJECT_WORDS, _COUNTER_WORDS = 22, 6, 4, 3
"""How far is looked: all of these structs are longer."""


@functools.cache
def tensor_class() -> ArrayClass | None:
    """Tensors and parameters; None where native code cannot read them."""
    found = array_class((torch.Tensor, torch.nn.Parameter))
    if found is None:
        return None
    known = _known_tensors()
    if not all(_is_as_expected(found, t) for t in known):
        return None
    pointer = _place(known, _OBJECT_WORDS, id, lambda t: t._cdata)
    guard = None if pointer is None else _guard(pointer, known)
    versions = None if pointer is None else _versions(pointer, known)
    if guard is None or versions is None:
        return None
    return replace(found, guard=guard, versions=versions)


def state_of(kind: ArrayClass, tensor: Any) -> tuple[int, int, int, int]:
    """The words that change where the tensor does."""
    at = kind.versions
    assert at is not None
    impl = _word(id(tensor) + at.pointer)
    storage, counter = _word(impl + at.storage), _word(impl + at.counter)
    number = _number(counter + at.number) if counter else -1
    return storage, _word(storage + at.data), _word(impl + at.offset), number


def _known_tensors() -> list[Any]:
    made = torch.arange(24, dtype=torch.float32).reshape(2, 3, 4)
    cut = made[1:, :, ::2]
    with torch.inference_mode():
        inferred = torch.ones(5, dtype=torch.int64)
    changed = torch.zeros(3, 2)
    for _ in range(3):
        changed.add_(1)
    others = [torch.zeros(()), torch.zeros((0, 5), dtype=torch.bool), inferred, changed]
    return [made, cut, made.permute(2, 0, 1), torch.nn.Parameter(torch.ones(7, 3)), *others]


def _is_as_expected(kind: ArrayClass, tensor: Any) -> bool:
    found = described(kind, tensor)
    return (
        found is not None
        and found.address == tensor.data_ptr()
        and found.device[0] == 1
        and found.shape == tuple(tensor.shape)
        and found.strides == tuple(tensor.stride())
        and found.dtype.itemsize == tensor.element_size()
    )


def _guard(pointer: int, known: Sequence[Any]) -> Guard | None:
    """Tensors with no keys of dispatch but those that plain ones have are what they say."""
    keys: Callable[[Any], int] = lambda t: torch._C._dispatch_keys(t).raw_repr()
    negated = torch.ones(2)._neg_view()
    place = _place([*known, negated], _IMPL_WORDS, _impl, keys)
    allowed = functools.reduce(int.__or__, map(keys, known))
    return None if place is None or not keys(negated) & ~allowed else Guard(pointer, place, allowed)


def _versions(pointer: int, known: Sequence[Any]) -> Versions | None:
    storage = _place(known, _IMPL_WORDS, _impl, lambda t: t.untyped_storage()._cdata)
    address: Callable[[Any], int] = lambda t: t.untyped_storage().data_ptr()
    data = _place(known, _STORAGE_WORDS, lambda t: t.untyped_storage()._cdata, address)
    offset = _place(known, _IMPL_WORDS, _impl, lambda t: t.storage_offset())
    if storage is None or data is None or offset is None:
        return None
    counter = _counter(known[0], {storage})
    number = None if counter is None else _version_number(counter)
    if counter is None or number is None:
        return None
    return Versions(pointer, storage, data, offset, counter, number)


def _counter(tensor: Any, taken: set[int]) -> int | None:
    """The pointer that a detached tensor shares, a copy does not, and one that was made in
    inference mode has not."""
    shared, other = tensor.detach(), tensor.clone()
    with torch.inference_mode():
        none = torch.zeros(2, 3, 4)
    words = [_words(_impl(t), _IMPL_WORDS) for t in (tensor, shared, other, none)]
    rows = enumerate(zip(*words))
    found = [8 * i for i, (a, b, c, d) in rows if a == b != c and a and c and not d]
    left = [place for place in found if place not in taken]
    return left[0] if len(left) == 1 else None


def _version_number(counter: int) -> int | None:
    """Where the number is that torch counts up: it is followed through some changes."""
    tensor = torch.zeros(2)
    places = set(range(0, 8 * _COUNTER_WORDS, 4))
    for _ in range(5):
        at = _word(_impl(tensor) + counter)
        places = {p for p in places if _number(at + p) == tensor._version}
        tensor.add_(1)
    return places.pop() if len(places) == 1 else None


def _impl(tensor: Any) -> int:
    return tensor._cdata


def _place(
    tensors: Sequence[Any], count: int, base: Callable[[Any], int], value: Callable[[Any], int]
) -> int | None:
    """The first byte of a struct at which all tensors have a value."""
    rows = [_words(base(t), count) for t in tensors]
    values = [value(t) & (1 << 64) - 1 for t in tensors]
    found = (8 * i for i, row in enumerate(zip(*rows)) if list(row) == values)
    return next(found, None)


def _words(address: int, count: int) -> list[int]:
    return list((ctypes.c_uint64 * count).from_address(address))


def _word(address: int) -> int:
    return ctypes.c_uint64.from_address(address).value


def _number(address: int) -> int:
    return ctypes.c_uint32.from_address(address).value
