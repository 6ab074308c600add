"""Shapes: dims and a dtype; well-known dims; and the binding of dims to sizes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, TypeAlias, overload

from rlx.core.arguments import MAPPING, NONE, instance
from rlx.core.dim import Dim, DimLike, dim_max, is_static, product, substitute, symbols_of
from rlx.core.dtype import DType
from rlx.core.errors import GraphError
from rlx.core.intervals import whole
from rlx.core.public_calls import public_class

MAX_BYTES = 2**63 - 1


class DimsDiffer(GraphError):
    """Two sizes are to be equal, and are not, or that cannot be shown."""

    def __init__(
        self, what: str, left: DimLike = 0, right: DimLike = 0, *, may_repeat: bool = False
    ) -> None:
        super().__init__(what)
        self.left, self.right, self.may_repeat = left, right, may_repeat


def dims_differ(what: str, found: Sequence[DimLike], wanted: Sequence[DimLike]) -> GraphError:
    """The error of dims that are to be equal, with the first two that are not."""
    pair = next(((f, w) for f, w in zip(found, wanted) if f != w), None)
    return (
        GraphError(what) if pair is None or len(found) != len(wanted) else DimsDiffer(what, *pair)
    )


def may_exceed(what: str, small: DimLike, large: DimLike) -> GraphError:
    """The error of a size that is to be at most another."""
    return DimsDiffer(what, dim_max(small, large), large)


def indivisible(what: str, dim: DimLike, number: int) -> GraphError:
    """The error of a dim that is to be a multiple of a number."""
    return DimsDiffer(what, dim, dim // number * number) if number > 0 else GraphError(what)


class OutOfRange(GraphError):
    """A call has a size outside of the range that a model was compiled for."""


ShapeLike: TypeAlias = "Shape | Iterable[DimLike | str]"
"""A shape, or its dims: sizes, names, or rlx.Dims."""


sym = SimpleNamespace(
    BATCH=Dim("batch"), SEQ=Dim("seq"), ROWS=Dim("rows"), PAST_SEQ=Dim("past_seq")
)


@public_class
class Shape:
    """The dims and dtype of one value. Printed `f32[4, seq, 384]`."""

    __slots__ = ("_hash", "dims", "dtype")
    dims: tuple[DimLike, ...]
    dtype: DType

    def __init__(self, dims: Iterable[DimLike | str], dtype: DType | str = DType.F32) -> None:
        is_list = isinstance(dims, Iterable) and not isinstance(dims, str | bytes | Shape)  # pyright: ignore[reportUnnecessaryIsInstance]
        if not is_list:  # a Shape has a dtype of its own: Shape.of takes it
            raise GraphError(f"Shape takes a list of dims, got {dims!r}.")
        self.dims = tuple(_checked(d) for d in dims)
        self.dtype = DType.of(dtype)
        self._hash = hash((self.dims, self.dtype.value))
        if self.is_static and self.size_bytes > MAX_BYTES:  # pyright: ignore[reportOperatorIssue]
            raise GraphError(f"{self} has more than 2^63 bytes. Use smaller dims.")

    @classmethod
    def of(cls, value: ShapeLike, dtype: Any = None) -> Shape:
        """A shape stands for itself; dims make one, of f32 if no dtype is given."""
        if not isinstance(value, Shape):
            return cls(value, DType.F32 if dtype is None else dtype)
        if dtype is not None and DType.of(dtype) is not value.dtype:
            raise GraphError(
                f"{value} is of {value.dtype}, and dtype is {dtype}. Give one of them."
            )
        return value

    @classmethod
    def batch_seq(
        cls,
        hidden: DimLike,
        dtype: DType | str = DType.F32,
        *,
        batch: DimLike | str = sym.BATCH,
        seq: DimLike | str = sym.SEQ,
    ) -> Shape:
        """[batch, seq, hidden], with the well-known dims or other sizes."""
        return cls([batch, seq, hidden], dtype)

    @classmethod
    def batch_seq_2d(
        cls,
        dtype: DType | str = DType.F32,
        *,
        batch: DimLike | str = sym.BATCH,
        seq: DimLike | str = sym.SEQ,
    ) -> Shape:
        """[batch, seq], with the well-known dims or other sizes: `batch_seq_2d("i64", seq=128)`."""
        return cls([batch, seq], dtype)

    @classmethod
    def batch_seq_heads(
        cls,
        heads: DimLike,
        head_dim: DimLike,
        dtype: DType | str = DType.F32,
        *,
        batch: DimLike | str = sym.BATCH,
        seq: DimLike | str = sym.SEQ,
    ) -> Shape:
        """[batch, seq, heads, head_dim], with the well-known dims or other sizes."""
        return cls([batch, seq, heads, head_dim], dtype)

    def __len__(self) -> int:
        return len(self.dims)

    def __iter__(self) -> Iterator[DimLike]:
        return iter(self.dims)

    @overload
    def __getitem__(self, axis: int) -> DimLike: ...
    @overload
    def __getitem__(self, axis: slice) -> tuple[DimLike, ...]: ...
    def __getitem__(self, axis: int | slice) -> DimLike | tuple[DimLike, ...]:
        """The size of an axis, or the sizes of several."""
        return self.dims[axis] if isinstance(axis, slice) else self.dim(axis)

    @property
    def rank(self) -> int:
        """How many axes it has."""
        return len(self.dims)

    @property
    def num_elements(self) -> DimLike:
        """The product of its dims."""
        return product(self.dims)

    @property
    def size_bytes(self) -> DimLike:
        """The bytes of its elements."""
        return self.num_elements * self.dtype.itemsize

    @property
    def is_static(self) -> bool:
        """Has it no named dims?"""
        return all(is_static(d) for d in self.dims)

    @property
    def is_measured(self) -> bool:
        """Is a dim known only while a graph runs?"""
        return any(isinstance(d, Dim) and d.is_measured for d in self.dims)

    @property
    def static_dims(self) -> tuple[int, ...]:
        """The dims as ints; an error where one is not known yet."""
        if not self.is_static:
            raise GraphError(f"{self} is not static. Bind its dims first.")
        return tuple(d for d in self.dims if not isinstance(d, Dim))

    @property
    def dynamic_symbols(self) -> tuple[Dim, ...]:
        """Its named dims, by name."""
        return symbols_of(self.dims)

    def dim(self, axis: int) -> DimLike:
        """The size of an axis; a negative one counts from the back."""
        return self.dims[self._axis(axis)]

    def with_dim(self, axis: int, dim: DimLike) -> Shape:
        """The shape with another size of one axis."""
        dims = list(self.dims)
        dims[self._axis(axis)] = dim
        return Shape(dims, self.dtype)

    def _axis(self, axis: int) -> int:
        at = whole(axis)
        if at is None or not -self.rank <= at < self.rank:
            raise GraphError(f"{axis!r} is no axis of {self}. Give one from 0 to {self.rank - 1}.")
        return at

    def with_dims(self, dims: Iterable[DimLike]) -> Shape:
        """The shape with other dims."""
        return Shape(dims, self.dtype)

    def with_dtype(self, dtype: DType) -> Shape:
        """The shape with another dtype."""
        return Shape(self.dims, dtype)

    def bind(self, binding: DimBinding | Mapping[str, DimLike]) -> Shape:
        """The shape with the bound symbols replaced by their sizes."""
        sizes = binding.sizes if isinstance(binding, DimBinding) else binding
        MAPPING.check("the binding", sizes, GraphError)
        return Shape((substitute(d, sizes) for d in self.dims), self.dtype)

    def broadcast_with(self, other: Shape) -> Shape:
        """The shape of an elementwise op on both, as NumPy broadcasts."""
        instance(Shape).check("other", other, GraphError)
        return Shape(broadcast(self.dims, other.dims), self.dtype)

    def __eq__(self, other: object) -> bool:
        return self is other or (
            isinstance(other, Shape) and self.dtype is other.dtype and self.dims == other.dims
        )

    def __hash__(self) -> int:
        return self._hash

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.dims))}]"

    def __repr__(self) -> str:
        return f"Shape([{', '.join(map(str, self.dims))}], {self.dtype!r})"


def broadcast(*dims: tuple[DimLike, ...]) -> tuple[DimLike, ...]:
    """NumPy's rule. A named dim meets only itself or 1: nothing is assumed about sizes."""
    rank = max(map(len, dims), default=0)
    result: list[DimLike] = [1] * rank
    for ds in dims:
        for i, d in enumerate(ds, rank - len(ds)):
            if result[i] == 1:
                result[i] = d
            elif d not in (1, result[i]):
                shown = " and ".join(f"[{', '.join(map(str, x))}]" for x in dims)
                what = f"{shown} do not broadcast: {result[i]} against {d}"
                raise DimsDiffer(what, result[i], d, may_repeat=True)
    return tuple(result)


def _checked(dim: DimLike | str) -> DimLike:
    if isinstance(dim, Dim):
        return dim
    if isinstance(dim, str):
        return Dim(dim)
    size = whole(dim)
    if size is None:
        raise GraphError(f"{dim!r} is not a dim: use a whole number, a name or a rlx.Dim.")
    if size < 0:
        raise GraphError(f"a dim of {size} is negative. Give 0 or more.")
    if size > MAX_BYTES:
        raise GraphError(f"a dim of {size} is past 2^63. Give a smaller one.")
    return size


SIZES = NONE | MAPPING


@public_class
class DimBinding:
    """Sizes for named dims."""

    __slots__ = ("sizes",)

    def __init__(self, sizes: Mapping[str | Dim, int] | None = None, **named: int) -> None:
        SIZES.check("sizes", sizes, GraphError)
        pairs = [*(sizes or {}).items(), *named.items()]
        self.sizes = {_name(k): _size(_name(k), v) for k, v in pairs}

    @classmethod
    def of(cls, value: DimBinding | Mapping[str, int]) -> DimBinding:
        """A binding stands for itself; sizes by name make one."""
        if isinstance(value, DimBinding):
            return value
        if not isinstance(value, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise GraphError(f"expected a rlx.DimBinding or sizes by name, got {value!r}.")
        return cls({**value})

    @classmethod
    def batch_seq(cls, batch: int, seq: int) -> DimBinding:
        """Binds `batch`, `seq`, and `rows` as their product."""
        return cls({"batch": batch, "seq": seq, "rows": batch * seq})

    @classmethod
    def batch_past_seq(cls, batch: int, past_seq: int) -> DimBinding:
        """Binds `batch` and `past_seq`, the length already in a KV cache."""
        return cls({"batch": batch, "past_seq": past_seq})

    def __iter__(self) -> Iterator[tuple[str, int]]:
        return iter(self.sizes.items())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DimBinding) and self.sizes == other.sizes

    def __hash__(self) -> int:
        return hash(frozenset(self.sizes.items()))

    def __repr__(self) -> str:
        return f"DimBinding({self.sizes})"

    def checked(self, symbols: Iterable[Dim]) -> dict[str, int]:
        """The sizes of `symbols`, each inside its range; other bindings are ignored."""
        sizes: dict[str, int] = {}
        for dim in symbols:
            size = self.sizes.get(dim.name)
            if size is None:
                raise GraphError(f"dim {dim.name} is not bound. Give it a size.")
            low, high = dim.bounds
            if size < (low or 0) or (high is not None and size > high):
                raise OutOfRange(f"dim {dim.name}={size} is outside its range {low}..{high}.")
            sizes[dim.name] = size
        return sizes


def _name(key: str | Dim) -> str:
    if isinstance(key, Dim):
        return key.name
    if isinstance(key, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        return key
    raise GraphError(f"{key!r} is not a dim's name. Bind by name or by rlx.Dim.")


def _size(name: str, value: int) -> int:
    size = whole(value)
    if size is None or size < 0:
        raise GraphError(f"dim {name} cannot be {value!r}: sizes are whole and not negative.")
    return size
