"""An engine made of NumPy, so that what engines share is tested without one.

Its arrays are boxes, which only functions that it compiled open.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from rlx.backends.base import Missing
from rlx.backends.engine import claims
from rlx.backends.engine.backend import EngineBackend
from rlx.backends.engine.calls import CallTable, Site
from rlx.backends.engine.engine import Compiled, Engine
from rlx.core.disk_cache import Cache
from rlx.core.dtype import DType
from rlx.core.shape import Shape
from rlx.cost.target import Target
from rlx.ops.op import Array

TABLE = CallTable("numpy")
TABLE.derived("add", "sub", "mul", "exp", "matmul", "relu", "reshape", "less", "expand", "tanh")
TABLE.derived("narrow", "squeeze", "transpose", "concat", "slice", "sum", "softmax", "where")
TABLE.derived("append", "assign")
TABLE.named(np, neg="negative")


@TABLE.call("gather")
def gather(x: Any, indices: Any, *, axis: int, site: Site) -> Any:
    size = x.shape[axis]
    site.require((indices >= 0) & (indices < size), f"an index is not below {size}")
    return np.take(x, np.clip(indices, 0, size - 1), axis=axis)


@TABLE.call("log", limit=lambda node: "there is no log of f64" if _is_double(node) else None)
def log(x: Any) -> Any:
    return np.log(x)


def _is_double(node: Any) -> bool:
    return node.shape.dtype is DType.F64


@dataclass(frozen=True)
class Boxed:
    """An array of the engine."""

    value: Array

    @property
    def shape(self) -> tuple[int, ...]:
        return self.value.shape

    @property
    def dtype(self) -> Any:
        return self.value.dtype

    def __getitem__(self, index: int) -> Boxed:
        return Boxed(np.asarray(self.value[index]))


class NumpyEngine(Engine):
    """Functions are not compiled, but counted."""

    name: ClassVar[str] = "numpy"
    table = TABLE

    def __init__(self) -> None:
        super().__init__()
        self.shapes: list[list[Shape]] = []
        """Of what functions that were compiled take."""
        self.calls: list[list[Shape]] = []
        self.fails: Exception | None = None
        """What calls raise."""

    @property
    def version(self) -> str:
        return "1"

    @property
    def namespace(self) -> Any:
        return np

    def holds(self, dtype: DType) -> bool:
        return not dtype.is_complex

    def dtype(self, dtype: DType) -> Any:
        return dtype.numpy

    def is_own(self, value: Any) -> bool:
        return isinstance(value, Boxed)

    def shape_of(self, array: Any) -> Shape:
        return Shape(array.shape, DType.of(array.dtype))

    def array(self, value: Array) -> Boxed:
        return Boxed(value)

    def constant(self, value: Array) -> Array:
        return value

    def numpy(self, array: Any) -> Array:
        return array.value

    def cast(self, array: Any, dtype: DType) -> Any:
        return array.astype(dtype.numpy)

    def failed(self, flag: Any) -> Any:
        return np.asarray(not np.all(flag), np.int32)

    def stack(self, arrays: Sequence[Any]) -> Any:
        if isinstance(arrays[0], Boxed):
            return Boxed(np.stack([a.value for a in arrays]))
        return np.stack(arrays)

    def compiled(self, function: Compiled, shapes: Sequence[Shape]) -> Compiled:
        self.shapes.append(list(shapes))

        def call(*boxes: Boxed) -> list[Boxed]:
            if self.fails is not None:
                raise self.fails
            self.calls.append([self.shape_of(b) for b in boxes])
            assert self.calls[-1] == list(shapes)
            with np.errstate(all="ignore"):
                return [Boxed(np.asarray(m)) for m in function(*(b.value for b in boxes))]

        return call

    def begin(self, arrays: Sequence[Any]) -> None:
        """There is nothing lazy."""

    def wait(self, arrays: Sequence[Any]) -> None:
        """There is nothing lazy."""


class NumpyBackend(EngineBackend):
    """The engine above, by the prices of a TPU."""

    name: ClassVar[str] = "tpu"
    package: ClassVar[str] = "numpy"

    def __init__(self) -> None:
        self.held = NumpyEngine()

    @property
    def documented(self) -> Target:
        return claims.target("tpu", TABLE, frozenset())

    def configured(
        self, variant: str, threads: int | None, cache: Cache | None = None
    ) -> NumpyBackend:
        self._check_threads(threads)
        return self

    def missing(self) -> Missing | None:
        return None

    def opened(self) -> NumpyEngine:
        return self.held
