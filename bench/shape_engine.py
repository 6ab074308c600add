"""An engine that knows shapes and computes nothing: what tracing a plan costs without its package.

Its calls are those of a target's table, and each gives an array of zeros of the op's result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np

from rlx.backends.engine.calls import CallTable, Site
from rlx.backends.engine.engine import Body, Compiled, Engine
from rlx.backends.mlx import calls as mlx_calls
from rlx.backends.mlx import claims as mlx_claims
from rlx.backends.tpu import calls as tpu_calls
from rlx.backends.tpu import claims as tpu_claims
from rlx.core.dtype import DType
from rlx.core.shape import Shape
from rlx.ops.op import Array, Op


def zeros(shape: Shape) -> Array:
    """Of no memory."""
    return np.broadcast_to(np.zeros((), shape.dtype.numpy), shape.static_dims)


class ShapeEngine(Engine):
    """The calls of a table, on shapes."""

    name: ClassVar[str] = "shapes"

    def __init__(self, table: CallTable, own_control: frozenset[str]) -> None:
        super().__init__()
        self.table, self.own_control = table, own_control  # of the instance, not of the class

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
        return isinstance(value, np.ndarray)

    def shape_of(self, array: Any) -> Shape:
        return Shape(array.shape, DType.of(array.dtype))

    def array(self, value: Array) -> Array:
        return value

    def constant(self, value: Array) -> Array:
        return value

    def numpy(self, array: Any) -> Array:
        return array

    def cast(self, array: Any, dtype: DType) -> Array:
        return zeros(Shape(array.shape, dtype))

    def failed(self, flag: Any) -> Array:
        return np.zeros((), np.int32)

    def stack(self, arrays: Sequence[Any]) -> Array:
        return np.broadcast_to(arrays[0], (len(arrays), *arrays[0].shape))

    def begin(self, arrays: Sequence[Any]) -> None:
        """Nothing is under way."""

    def wait(self, arrays: Sequence[Any]) -> None:
        """Nothing is under way."""

    # -- functions ---------------------------------------------------------------------------------

    def compiled(self, function: Compiled, shapes: Sequence[Shape]) -> Compiled:
        function(*map(zeros, shapes))
        return function

    def function(self, op: Op) -> Callable[..., Any]:
        def call(*operands: Any, site: Site | None = None, **attrs: Any) -> Any:
            shapes = site.results if site else self._inferred(op, operands, attrs)
            made = tuple(map(zeros, shapes))
            return made if op.gives_items(shapes) else made[0]

        return call

    def _inferred(self, op: Op, operands: Sequence[Any], attrs: dict[str, Any]) -> Sequence[Shape]:
        shapes = [self.shape_of(o) for o in operands]
        return op.infer(shapes, op.canonical(attrs, shapes))

    def branch(self, predicate: Any, then: Body, other: Body, operands: Sequence[Any]) -> Any:
        other(*operands)
        return then(*operands)

    def loop(self, condition: Body, body: Body, carries: Sequence[Any]) -> Any:
        condition(*carries)
        return body(*carries)

    def scan(
        self,
        body: Callable[[Sequence[Any], Sequence[Any]], tuple[Sequence[Any], Sequence[Any]]],
        carries: Sequence[Any],
        slices: Sequence[Any],
        length: int,
        *,
        reverse: bool,
    ) -> tuple[Sequence[Any], Sequence[Any]]:
        last, rows = body(carries, [x[0] for x in slices])
        return last, [np.broadcast_to(r, (length, *r.shape)) for r in rows]


def engine_of(target: str) -> ShapeEngine:
    """In the place of a target's package."""
    if target == "mlx":
        return ShapeEngine(mlx_calls.table(), mlx_claims.OWN_CONTROL)
    return ShapeEngine(tpu_calls.table(), tpu_claims.OWN_CONTROL)
