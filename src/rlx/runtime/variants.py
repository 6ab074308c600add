"""Variants: the programs of a model that is another for other sizes or values of its inputs.

What decides a shape by its value, and what no formula over named sizes describes, is compiled for
the values and sizes that a call has. An executable holds those programs by what they are for.
"""

from __future__ import annotations

import logging
import math
import time
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np

from rlx.core.arrays import as_array, is_array
from rlx.core.dim import Dim, DimLike, substitute, symbols_of
from rlx.core.errors import Error, GraphError
from rlx.core.intervals import whole
from rlx.core.memory_limits import require_memory
from rlx.core.shape import DimBinding, Shape
from rlx.ops.op import Array
from rlx.runtime.named_calls import listed

if TYPE_CHECKING:
    from rlx.backends.base import Backend
    from rlx.cost.decision import Decision
    from rlx.runtime.executable import Executable
    from rlx.runtime.loaded_program import MemoryNeed

LOG = logging.getLogger("rlx")
V = TypeVar("V")
Signature = tuple[tuple[Any, ...], ...]
"""What a program is for: of each input its dims, and of one whose value counts, dtype and bytes."""


def signature_of(arrays: Mapping[str, Array], static: Sequence[str]) -> Signature:
    """What a call on these arrays needs a program for."""
    return tuple(
        (n, a.shape, a.dtype.str, a.tobytes())
        if n in static and not a.dtype.hasobject
        else (n, a.shape)
        for n, a in arrays.items()
    )


MAX_VARIANTS = 32
"""Programs that one model is compiled to for single calls; the one not used longest goes."""
FEW_VARIANTS = 8
"""A model that is compiled for more calls than these is one to be warned of: each waits for it."""


class VariantCache(Generic[V]):
    """What a model is compiled to for single calls, by what each is for. Why a call had to wait for
    a compile is logged."""

    def __init__(self, name: str, entries: Iterable[tuple[Any, V]] = ()) -> None:
        self.name = name
        self._entries = OrderedDict(entries)
        self._num_compiled = 0

    def obtain(
        self, key: Any, build: Callable[[], V], purpose: Callable[[], tuple[str, str]] | None
    ) -> V:
        """The variant of this key, built where it is not there. `purpose` gives what it is for,
        and why no other serves; it is None for what is built once, before any call."""
        if key not in self._entries:
            start = time.perf_counter()
            self._entries[key] = build()
            if purpose is not None:
                self._log(*purpose(), time.perf_counter() - start)
            if len(self._entries) > MAX_VARIANTS:
                self._entries.popitem(last=False)
        self._entries.move_to_end(key)
        return self._entries[key]

    def _log(self, purpose: str, why: str, seconds: float) -> None:
        self._num_compiled += 1
        is_many = self._num_compiled > FEW_VARIANTS
        LOG.log(
            logging.WARNING if is_many else logging.INFO,
            "%s: compiled for %s in %.2f s, as no program serves all calls: %s%s",
            self.name, purpose, seconds, why,
            f". This is compile {self._num_compiled}: pad inputs to a few sizes" * is_many,
        )  # fmt: skip

    def items(self) -> tuple[tuple[Any, V], ...]:
        """Keys and variants, the one that was used last at the end."""
        return tuple(self._entries.items())

    def clear(self) -> None:
        """Forget the variants, so that they are built anew."""
        self._entries.clear()


@dataclass(frozen=True, slots=True)
class Table:
    """Programs of tensors by what they are for: what a file holds of variants."""

    static: tuple[str, ...]
    """The inputs whose values count."""
    programs: Mapping[Signature, Executable]


class Variants(ABC):
    """The programs of one model, made when a call needs them, or read from a file."""

    name: str
    backend: Backend
    """What runs them."""
    static: tuple[str, ...] = ()
    """The inputs whose values a program is compiled for."""

    @property
    @abstractmethod
    def inputs(self) -> Mapping[str, Shape | None]:
        """Name → shape, in the order of positional arguments; None where the model says none."""

    @property
    @abstractmethod
    def outputs(self) -> Mapping[str, Shape | None]: ...

    @property
    @abstractmethod
    def programs(self) -> tuple[Executable, ...]:
        """Those that are there, the one that was used last at the end."""

    @property
    @abstractmethod
    def decisions(self) -> tuple[Decision, ...]:
        """Why there are several, and the decisions of each."""

    @abstractmethod
    def call(self, arrays: tuple[Any, ...], out: Any) -> Any:
        """The output, or a tuple of them."""

    @abstractmethod
    def settled(self, arrays: tuple[Any, ...]) -> tuple[Executable, list[Array]]:
        """The program for these inputs, and what it takes of them; the largest of several."""

    @abstractmethod
    def prepare(self, arrays: tuple[Any, ...]) -> None:
        """Compile what a call on these inputs needs."""

    @abstractmethod
    def set_params(self, params: Mapping[str, Any]) -> None:
        """Weights by name, for programs that are there and that are still to be made."""

    @abstractmethod
    def has_param(self, name: str) -> bool: ...

    @abstractmethod
    def copied(self) -> Variants:
        """The same programs; weights of one are not the other's."""

    @abstractmethod
    def table(self) -> Table:
        """What a file holds; an error where that cannot be written."""

    def last(self) -> Executable:
        """The program that was used last."""
        if not self.programs:
            raise Error(
                f"{self.name}: it is compiled when it is called, and it was not yet. Call it, or "
                "say for which inputs: warmup([{name: shape}]), explain(inputs)."
            )
        return self.programs[-1]

    def memory(self, sizes: Mapping[str, int]) -> MemoryNeed:
        """Of the program for sizes of named dims, or the last one where none are given."""
        return self._at(sizes).loaded.memory(sizes)

    def _at(self, sizes: Mapping[str, int]) -> Executable:
        if not sizes:
            return self.last()
        for program in reversed(self.programs):
            if all(
                _is_bound(self.inputs.get(n), s, sizes) for n, s in program.loaded.inputs.items()
            ):
                return program
        raise Error(
            f"{self.name}: there is no program for {_shown(sizes)} yet. Compile it: "
            f"warmup([{dict(sizes)}])."
        )


class SavedVariants(Variants):
    """The programs of a file. Nothing more can be compiled: the model is not in it."""

    def __init__(
        self,
        name: str,
        backend: Backend,
        inputs: Mapping[str, Shape | None],
        outputs: Mapping[str, Shape | None],
        table: Table,
    ) -> None:
        self.name, self.backend, self._inputs, self._outputs = name, backend, inputs, outputs
        self._table, self.static = table, table.static
        self._last: Executable | None = None

    @property
    def inputs(self) -> Mapping[str, Shape | None]:
        return self._inputs

    @property
    def outputs(self) -> Mapping[str, Shape | None]:
        return self._outputs

    @property
    def programs(self) -> tuple[Executable, ...]:
        every = [p for p in self._table.programs.values() if p is not self._last]
        return (*every, *([self._last] if self._last else []))

    @property
    def decisions(self) -> tuple[Decision, ...]:
        return tuple(d for exe in self.programs for d in exe.decisions)

    def call(self, arrays: tuple[Any, ...], out: Any) -> Any:
        program, given = self.settled(arrays)
        return program(*given, out=out)

    def settled(self, arrays: tuple[Any, ...]) -> tuple[Executable, list[Array]]:
        pairs = zip(self._inputs.items(), arrays, strict=True)
        named = {
            n: as_array(a, f"input {n!r}", None if s is None else s.dtype) for (n, s), a in pairs
        }
        signature = signature_of(named, self.static)
        found = self._table.programs.get(signature)
        if found is None:
            held = "; ".join(map(described, self._table.programs))
            raise Error(
                f"{self.name}: the file has no program for {described(signature)}. It has those "
                f"for: {held}. Compile the model for it and save it again: exe.warmup([…])."
            )
        self._last = found
        return found, [a for n, a in named.items() if n not in self.static]

    def prepare(self, arrays: tuple[Any, ...]) -> None:
        self.settled(arrays)

    def set_params(self, params: Mapping[str, Any]) -> None:
        for program in self.programs:
            known = program.params
            program.set_params({k: v for k, v in params.items() if k in known})

    def has_param(self, name: str) -> bool:
        return any(name in p.params for p in self.programs)

    def copied(self) -> Variants:
        held = {k: v.__copy__() for k, v in self._table.programs.items()}
        table = Table(self.static, held)
        return SavedVariants(self.name, self.backend, self._inputs, self._outputs, table)

    def table(self) -> Table:
        return self._table


def described(signature: Signature) -> str:
    """What a program is for, as a reader would say it."""
    return ", ".join(_input_text(*each) for each in signature)


def _input_text(name: str, dims: tuple[int, ...], dtype: str = "", data: bytes = b"") -> str:
    if dtype and math.prod(dims) <= 8:
        return f"{name} = {np.frombuffer(data, dtype).reshape(dims).tolist()}"
    return f"{name} {'×'.join(map(str, dims)) or 'of one number'}{' of its value' if dtype else ''}"


def _shown(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{k}={v}" for k, v in sizes.items())


def _is_bound(declared: Shape | None, shape: Shape, sizes: Mapping[str, int]) -> bool:
    """Is a program's input what the declared one is at these sizes?"""
    if declared is None or declared.rank != shape.rank:
        return declared is None
    for named, dim in zip(declared.dims, shape.dims):
        symbol = named.bound_symbol if isinstance(named, Dim) else None
        if symbol is not None and symbol.name in sizes and dim != sizes[symbol.name]:
            return False
    return True


# -- calls that are described ----------------------------------------------------------------------


def described_inputs(name: str, declared: Mapping[str, Shape | None], call: Any) -> tuple[Any, ...]:
    """Inputs for a call of which shapes of inputs, arrays, or sizes of named dims are said: zeros
    where only the shape is, which take no memory."""
    if not isinstance(call, Mapping):
        raise Error(f"{name}: a call is {call!r}. Give a dict of shapes, arrays or sizes.")
    given: Mapping[Any, Any] = call
    shapes = [s for s in declared.values() if s is not None]
    symbols = {d.name for s in shapes for d in symbols_of(s.dims)}
    for key in given:
        if key not in declared and key not in symbols:
            known = listed([*declared, *sorted(symbols)])
            raise Error(f"{name}: there is no input or named dim {key!r}. It has: {known}.")
    try:
        sizes = DimBinding({k: v for k, v in given.items() if k not in declared}).sizes
        return tuple(_described(n, s, given, sizes) for n, s in declared.items())
    except GraphError as error:
        raise Error(f"{name}: {error}") from None


def _described(
    key: str, declared: Shape | None, call: Mapping[str, Any], sizes: Mapping[str, int]
) -> Any:
    given: Any = call.get(key)
    is_list = isinstance(given, tuple | list)
    is_shape = is_list and all(whole(d) is not None for d in given)  # pyright: ignore
    if declared is None:
        if key not in call:
            raise GraphError(f"the model states no shape of input {key!r}. Give an array of it.")
        return given
    if key not in call or is_shape:
        shape = Shape(given if is_shape else _dims(key, declared, sizes), declared.dtype)
        _check_dims(key, declared, shape.static_dims, sizes)
        return _zeros(key, shape)
    if is_list or not (is_array(given) or isinstance(given, bool | int | float | complex)):
        raise GraphError(
            f"input {key!r} is given as {given!r}. Give its shape, {key}=(…), or an array."
        )
    dims: Any = getattr(given, "shape", None)
    found = as_array(given, f"input {key!r}").shape if dims is None else tuple(dims)
    _check_dims(key, declared, found, sizes)
    return given


def _dims(key: str, shape: Shape, sizes: Mapping[str, int]) -> tuple[int, ...]:
    found: list[int] = []
    for dim in shape.dims:
        symbol = dim.bound_symbol if isinstance(dim, Dim) else None
        is_given = symbol is not None and symbol.name in sizes
        size = sizes[symbol.name] if is_given else substitute(dim, sizes)  # pyright: ignore
        if isinstance(size, Dim):
            raise GraphError(
                f"nothing says what {dim} of input {key!r} is. Give the shape of the input, "
                f"{key}=(…), or the sizes of its named dims."
            )
        found.append(size)
    return tuple(found)


def _check_dims(key: str, declared: Shape, dims: Sequence[int], sizes: Mapping[str, int]) -> None:
    """Fixed dims are as declared, and named ones as stated; in what range those can be, the program
    knows."""
    wanted = [_stated(d, sizes) for d in declared.dims]
    if len(dims) != len(wanted) or any(w not in (None, d) for w, d in zip(wanted, dims)):
        stated = f" at {_shown(sizes)}" * bool(sizes)
        raise GraphError(f"input {key!r} is {declared}{stated}, and is given as {list(dims)}.")


def _stated(dim: DimLike, sizes: Mapping[str, int]) -> int | None:
    """The size of a dim; None where it is free."""
    if not isinstance(dim, Dim):
        return dim
    symbol = dim.bound_symbol
    return None if symbol is None else sizes.get(symbol.name)


def _zeros(key: str, shape: Shape) -> Array:
    require_memory(math.prod(shape.static_dims) * shape.dtype.itemsize, f"input {key!r}, {shape},")
    try:
        return np.broadcast_to(np.zeros((), shape.dtype.numpy), shape.static_dims)
    except ValueError as error:
        raise GraphError(f"input {key!r} cannot be {shape}: {error}.") from None
