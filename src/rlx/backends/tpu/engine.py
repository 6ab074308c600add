"""jax as an engine: functions that XLA compiles for arrays of fixed shapes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, ClassVar

import numpy as np

from rlx.backends.engine.engine import Body, Compiled, Engine
from rlx.backends.engine.steps import Segment
from rlx.backends.engine.trace import Traced
from rlx.backends.tpu.calls import table
from rlx.backends.tpu.claims import OWN_CONTROL
from rlx.backends.tpu.namespaces import jax, jnp, lax
from rlx.core.dtype import DType
from rlx.core.shape import Shape
from rlx.ops.op import Array

OPTIONS = {"xla_allow_excess_precision": False}
"""Half floats are rounded after each op of the graph: XLA would leave roundings out."""


class JaxEngine(Engine):
    """jax on one of its devices."""

    name: ClassVar[str] = "jax"
    table = table()
    own_control: ClassVar[frozenset[str]] = OWN_CONTROL
    takes_numpy: ClassVar[bool] = True

    def __init__(self, device: Any) -> None:
        super().__init__()
        self.device = device
        self._array_type: type = jax.Array
        self.donated: Mapping[Segment, tuple[int, ...]] = {}
        """By segment: arguments that its function may consume."""

    @property
    def version(self) -> str:
        return f"jax {jax.__version__} {self.device.platform} {self.device.device_kind}"

    @property
    def namespace(self) -> Any:
        return jnp

    def holds(self, dtype: DType) -> bool:
        """TPUs have no complex128."""
        return dtype is not DType.C128 or self.device.platform != "tpu"

    def dtype(self, dtype: DType) -> Any:
        return np.dtype(dtype.numpy)

    def is_own(self, value: Any) -> bool:
        return isinstance(value, self._array_type)

    def shape_of(self, array: Any) -> Shape:
        return Shape(array.shape, DType.of(array.dtype))

    def array(self, value: Array) -> Any:
        return jax.device_put(value, self.device)

    def constant(self, value: Array) -> Any:
        return jnp.asarray(value)

    def numpy(self, array: Any) -> Array:
        return np.asarray(array)

    def copied(self, array: Any) -> Any:
        return jnp.copy(array)

    def is_consumed(self, array: Any) -> bool:
        return array.is_deleted()

    def cast(self, array: Any, dtype: DType) -> Any:
        return lax.convert_element_type(array, dtype.numpy)

    def failed(self, flag: Any) -> Any:
        return jnp.logical_not(jnp.all(flag)).astype(np.int32)

    def stack(self, arrays: Sequence[Any]) -> Any:
        return jnp.stack(arrays)

    # -- functions ---------------------------------------------------------------------------------

    def scope(self) -> AbstractContextManager[Any]:
        """64-bit types, in this thread, for as long as rlx calls jax."""
        return jax.enable_x64(True)

    def compiled(self, function: Compiled, shapes: Sequence[Shape]) -> Compiled:
        given = self.arguments(function, shapes)
        return self.called(self.jitted(function).lower(*given).compile(), function)

    def jitted(self, function: Compiled) -> Any:
        """The function as jax traces, compiles and exports it."""
        return self.jit(function, function)

    def jit(self, called: Callable[..., Any], function: Compiled) -> Any:
        """What stands for a function, with what that one may consume."""
        consumed = self.donated.get(function.segment, ()) if isinstance(function, Traced) else ()
        return jax.jit(called, compiler_options=OPTIONS, donate_argnums=consumed)

    def arguments(self, function: Compiled, shapes: Sequence[Shape]) -> list[Any]:
        """What it is traced with: shapes, dtypes, and where arrays lie."""
        where = jax.sharding.SingleDeviceSharding(self.device)
        return [jax.ShapeDtypeStruct(s.static_dims, s.dtype.numpy, sharding=where) for s in shapes]

    def called(self, executable: Any, function: Compiled) -> Compiled:
        """What XLA made of a function, to be called."""
        return executable

    def executable(self, compiled: Compiled) -> Any:
        """What XLA made of a function that can be called."""
        return compiled

    @property
    def axes(self) -> dict[str, int]:
        """Of the mesh of its devices; none where it is one."""
        return {}

    @property
    def all_devices(self) -> list[Any]:
        """Those that run a function together."""
        return [self.device]

    def acceptor(self, shapes: Sequence[Shape]) -> Callable[[Sequence[Any]], bool]:
        """Its own, and NumPy's: a compiled function itself refuses other shapes and dtypes. NumPy's
        come first, as a test for jax's runs Python."""
        taken = (np.ndarray, self._array_type)

        def takes(values: Sequence[Any]) -> bool:
            return all(isinstance(v, taken) for v in values)

        return takes

    def begin(self, arrays: Sequence[Any]) -> None:
        """Calls are under way when they return."""

    def wait(self, arrays: Sequence[Any]) -> None:
        jax.block_until_ready(list(arrays))

    # -- control flow ------------------------------------------------------------------------------

    def branch(self, predicate: Any, then: Body, other: Body, operands: Sequence[Any]) -> Any:
        return lax.cond(predicate, _strong(then), _strong(other), *operands)

    def loop(self, condition: Body, body: Body, carries: Sequence[Any]) -> Any:
        given = [_typed(c) for c in carries]
        step = _strong(body)
        return lax.while_loop(lambda c: condition(*c), lambda c: step(*c), given)

    def scan(
        self,
        body: Callable[[Sequence[Any], Sequence[Any]], tuple[Sequence[Any], Sequence[Any]]],
        carries: Sequence[Any],
        slices: Sequence[Any],
        length: int,
        *,
        reverse: bool,
    ) -> tuple[Sequence[Any], Sequence[Any]]:
        def step(state: Any, row: Any) -> tuple[list[Any], list[Any]]:
            ahead, made = body(state, row)
            return [_typed(a) for a in ahead], list(made)

        given = [_typed(c) for c in carries]
        return lax.scan(step, given, list(slices), length=length, reverse=reverse)

    def is_out_of_memory(self, error: Exception) -> bool:
        return "RESOURCE_EXHAUSTED" in str(error) or super().is_out_of_memory(error)


def _typed(array: Any) -> Any:
    """Of its own dtype: one that stems from a Python number would still give way to others."""
    return lax.convert_element_type(array, array.dtype)


def _strong(body: Body) -> Body:
    return lambda *arrays: [_typed(a) for a in body(*arrays)]
