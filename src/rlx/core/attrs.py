"""Attributes: the typed, canonical, hashable parameters of an op.

An op's keyword-only parameters declare its attributes; their annotations are checked here, once,
when a node is made. Canonical means that equal attributes have equal keys: axes are counted from
the front, lists are tuples, arrays are `Data`.
"""

from __future__ import annotations

import hashlib
import reprlib
import types
import typing
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NewType, Union, get_args, get_origin

import numpy as np
from numpy.typing import NDArray

from rlx.core.atoms import exact_text
from rlx.core.dim import Dim, DimLike, substitute
from rlx.core.dtype import DType
from rlx.core.errors import GraphError
from rlx.core.intervals import whole
from rlx.core.shape import Shape
from rlx.core.size_operators import as_data

Axis = NewType("Axis", int)
"""An axis of the first operand; negative counts from the back."""
Axes = NewType("Axes", tuple[int, ...])
"""Distinct axes of the first operand, sorted; None means all of them."""

Convert = Callable[[Any, int], Any]


class HeldGraph(ABC):
    """A graph as an attribute: the body of a region, a branch or a loop."""

    @property
    @abstractmethod
    def names_dims(self) -> bool:
        """Does it name a dim, whose size only a call knows?"""

    @abstractmethod
    def _seal(self, use: str = "a body") -> None:
        """From now on it is a value: it cannot be changed."""

    @abstractmethod
    def bind(self, binding: Any) -> Any:
        """It with the dims inside it bound."""

    @abstractmethod
    def order(self) -> Sequence[Any]:
        """Its nodes, operands first."""


def array_of(value: Any) -> NDArray[Any]:
    """`value` as an array of a dtype that rlx has."""
    if isinstance(value, Dim):
        raise GraphError(f"the size {value} is not known yet. {as_data(value)}")
    try:
        array = np.asarray(value)
        DType.of(array.dtype)
    except (TypeError, ValueError) as error:
        raise GraphError(f"{reprlib.repr(value)} is not an array of numbers: {error}") from None
    return array


class Data:
    """An array as an attribute: read-only, compared by dtype, shape and bytes."""

    __slots__ = ("array", "digest")

    def __init__(self, array: Any) -> None:
        given = array_of(array)
        self.array: NDArray[Any] = np.array(given, order="C", copy=True)
        self.array.setflags(write=False)
        head = f"{DType.of(given.dtype)}{given.shape}".encode()
        self.digest = hashlib.blake2b(head + self.array.tobytes(), digest_size=16).hexdigest()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Data) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    def __deepcopy__(self, memo: Any) -> Data:
        """Nobody changes it."""
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return Data, (self.array,)

    def __repr__(self) -> str:
        return f"Data({DType.of(self.array.dtype)}{list(self.array.shape)})"


def only_sequence(hints: Mapping[str, Any], names: Sequence[str]) -> str | None:
    """The one attribute, where it is a sequence: its elements may be given one by one."""
    if len(names) != 1:
        return None
    hint = hints.get(names[0])
    options = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    return names[0] if any(get_origin(o) is tuple for o in options) else None


def converter(hint: Any) -> Convert:
    """The check that turns a given value into the canonical value of type `hint`."""
    if hint in _PLAIN:
        return _PLAIN[hint]
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        if set(args) == {int, Dim}:
            return _dim
        return _optional(args)
    if origin is Literal:
        return _one_of(args)
    if origin is tuple:
        return _tuple_of(converter(args[0]))
    raise TypeError(f"{hint!r} is not an attribute type")


def _int(value: Any, rank: int) -> int:
    number = whole(value)
    if number is None:
        raise GraphError(f"expected a whole number, got {value!r}")
    if not -(2**63) <= number < 2**64:
        raise GraphError(f"{number} does not fit 64 bits. Give a smaller number")
    return number


def _dim(value: Any, rank: int) -> DimLike:
    return value if isinstance(value, Dim) else _int(value, rank)


def _float(value: Any, rank: int) -> float:
    if isinstance(value, int | float | np.floating | np.integer) and not isinstance(value, bool):
        return float(value)
    raise GraphError(f"expected a number, got {value!r}")


def _bool(value: Any, rank: int) -> bool:
    if not isinstance(value, bool | np.bool_):
        raise GraphError(f"expected True or False, got {value!r}")
    return bool(value)


def is_text(value: str) -> bool:
    """Can it be written as UTF-8? A lone half of a surrogate pair cannot."""
    return value.isascii() or not any("\ud800" <= c <= "\udfff" for c in value)


def _str(value: Any, rank: int) -> str:
    if not isinstance(value, str) or not is_text(value):
        raise GraphError(f"expected a string of Unicode text, got {value!r}")
    return value


def _dtype(value: Any, rank: int) -> DType:
    return DType.of(value)


def _data(value: Any, rank: int) -> Data:
    return value if isinstance(value, Data) else Data(value)


def _axis(value: Any, rank: int) -> int:
    axis = _int(value, rank)
    if not -rank <= axis < rank:
        raise GraphError(
            f"axis {axis} is out of range for rank {rank}. Give one from {-rank} to {rank - 1}"
        )
    return axis % rank


def _axes(value: Any, rank: int) -> tuple[int, ...]:
    if value is None:
        return tuple(range(rank))
    given = value if isinstance(value, tuple | list) else (value,)
    axes = tuple(sorted(_axis(v, rank) for v in given))
    if len(set(axes)) != len(axes):
        raise GraphError(f"axes {tuple(given)} name one axis twice. Name each once")
    return axes


def _shape(value: Any, rank: int) -> Shape:
    if not isinstance(value, Shape):
        raise GraphError(f"expected a rlx.Shape, got {value!r}")
    return value


def _graph(value: Any, rank: int) -> Any:
    if not isinstance(value, HeldGraph):
        raise GraphError(f"expected a rlx.Graph, got {type(value).__name__}")
    value._seal()  # pyright: ignore[reportPrivateUsage]
    return value


def _one_of(choices: tuple[Any, ...]) -> Convert:
    def convert(value: Any, rank: int) -> Any:
        if value not in choices or isinstance(value, bool):
            raise GraphError(f"expected one of {', '.join(map(repr, choices))}, got {value!r}")
        return value

    return convert


def _optional(args: tuple[Any, ...]) -> Convert:
    rest = tuple(a for a in args if a is not type(None))
    inner = converter(rest[0] if len(rest) == 1 else Union[rest])  # noqa: UP007
    if rest == (Axes,):
        return inner
    if len(rest) == len(args):
        raise TypeError("a union of attribute types must be with None, or int | Dim")
    return lambda value, rank: None if value is None else inner(value, rank)


def _tuple_of(inner: Convert) -> Convert:
    def convert(value: Any, rank: int) -> tuple[Any, ...]:
        if not isinstance(value, tuple | list | np.ndarray | Shape):
            raise GraphError(f"expected a sequence, got {value!r}")
        return tuple(inner(v, rank) for v in value)

    return convert


class Body:
    """The annotation of an attribute that holds a graph: a branch, a loop body, a region."""


_PLAIN: dict[Any, Convert] = {
    int: _int,
    float: _float,
    bool: _bool,
    str: _str,
    DType: _dtype,
    Data: _data,
    Axis: _axis,
    Axes: _axes,
    Body: _graph,
    Shape: _shape,
}


def key(value: Any) -> Any:
    """A hashable stand-in that is equal exactly for equal values: -0.0 is not 0.0."""
    if isinstance(value, float):
        return ("float", value.hex())
    if isinstance(value, tuple):
        return tuple(map(key, value))  # pyright: ignore[reportUnknownArgumentType]
    if isinstance(value, Data | DType | str | Dim | Shape) or value is None:
        return value
    if isinstance(value, bool | int):
        return (type(value).__name__, value)
    return ("graph", value.digest())


def canonical(value: Any) -> str:
    """A text that is equal exactly for equal attributes, on every machine: what digests hash.

    Strings are quoted, dims have the ranges of their symbols, and every kind of value is written
    differently, so that no two values share a text.
    """
    match value:
        case None | bool() | int() | str():
            return repr(value)
        case float():
            return f"float {value.hex()}"
        case tuple():
            return f"({''.join(f'{canonical(v)},' for v in value)})"  # pyright: ignore[reportUnknownVariableType]
        case Dim():
            return f"dim {exact_text(value)}"
        case Shape():
            return f"shape {shape_text(value)}"
        case DType():
            return f"dtype {value.value}"
        case _:
            kind = "data" if isinstance(value, Data) else "graph"
            return f"{kind} {value.digest if isinstance(value, Data) else value.digest()}"


def shape_text(shape: Shape) -> str:
    """A shape with the ranges of its named dims."""
    return f"{shape.dtype.value}[{','.join(map(exact_text, shape.dims))}]"


def record(node: Any, inputs: list[int]) -> str:
    """All that a digest must see of one node."""
    values = [f"{k}={canonical(v)}" for k, v in node.attrs.items()]
    return f"{node.op}{inputs}{values}{list(map(shape_text, node.shapes))}{node.has_items};"


def bind(value: Any, sizes: Mapping[str, DimLike]) -> Any:
    """`value` with the dims inside it bound."""
    if isinstance(value, Dim):
        return substitute(value, sizes)
    if isinstance(value, Shape):
        return value.bind(sizes)
    if isinstance(value, tuple):
        return tuple(bind(v, sizes) for v in value)  # pyright: ignore[reportUnknownVariableType]
    return value.bind(sizes) if isinstance(value, HeldGraph) else value


def dims_in(value: Any) -> list[Dim]:
    """The dims inside `value` that are not plain numbers."""
    if isinstance(value, Dim):
        return [value]
    if isinstance(value, Shape):
        return [d for d in value.dims if isinstance(d, Dim)]
    return [d for v in value for d in dims_in(v)] if isinstance(value, tuple) else []  # pyright: ignore[reportUnknownVariableType]


def is_symbolic(value: Any) -> bool:
    """Does `value` name a dim, whose size only a call knows?"""
    if isinstance(value, Dim):
        return True
    if isinstance(value, Shape):
        return not value.is_static
    if isinstance(value, tuple):
        return any(map(is_symbolic, value))  # pyright: ignore[reportUnknownArgumentType]
    return isinstance(value, HeldGraph) and value.names_dims


def hints_of(function: Callable[..., Any]) -> dict[str, Any]:
    """The annotations of `function`, evaluated."""
    return typing.get_type_hints(function)
