"""mlx as an engine: functions that `mx.compile` traces once per shape and fuses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np

from rlx.backends.engine.engine import Compiled, Engine
from rlx.backends.mlx.calls import table
from rlx.backends.mlx.claims import OWN_CONTROL
from rlx.backends.mlx.namespaces import NumPyNames, mx
from rlx.core.dtype import DType
from rlx.core.shape import Shape
from rlx.ops.op import Array

NAMES = {
    DType.BOOL: "bool_", DType.U8: "uint8", DType.U16: "uint16", DType.U32: "uint32",
    DType.U64: "uint64", DType.I8: "int8", DType.I16: "int16", DType.I32: "int32",
    DType.I64: "int64", DType.F16: "float16", DType.BF16: "bfloat16", DType.F32: "float32",
    DType.F64: "float64", DType.C64: "complex64",
}  # fmt: skip
SHARED_BYTES = 1 << 20
"""From here on arrays are imported by DLPack, which shares memory where mlx can: on Apple silicon.
Its Linux build copies everything."""

NOT_SHARED = (DType.BOOL, DType.F64)
"""DLPack has no bool before 1.0, and mlx imports doubles as f32."""


class MlxEngine(Engine):
    """mlx on its default device."""

    name: ClassVar[str] = "mlx"
    table = table()
    own_control: ClassVar[frozenset[str]] = OWN_CONTROL

    def __init__(self, *, is_gpu: bool) -> None:
        super().__init__()
        self.is_gpu = is_gpu
        self._array_type: type = mx.array
        self._dtypes = {d: getattr(mx, name) for d, name in NAMES.items()}
        self._back = {v: k for k, v in self._dtypes.items()}

    @property
    def version(self) -> str:
        return f"mlx {mx.__version__} {'gpu' if self.is_gpu else 'cpu'}"

    @property
    def namespace(self) -> Any:
        return NumPyNames()

    def holds(self, dtype: DType) -> bool:
        """It has complex64 only, and doubles on the processor alone."""
        return dtype in NAMES and not (dtype is DType.F64 and self.is_gpu)

    def dtype(self, dtype: DType) -> Any:
        return self._dtypes[dtype]

    def is_own(self, value: Any) -> bool:
        return isinstance(value, self._array_type)

    def shape_of(self, array: Any) -> Shape:
        return Shape(array.shape, self._back[array.dtype])

    def array(self, value: Array) -> Any:
        """mlx takes no negative strides."""
        value, dtype = np.asarray(value, order="C"), DType.of(value.dtype)
        if dtype is DType.BF16:
            bits = mx.array(np.ascontiguousarray(value).view(np.uint16))
            return bits.view(mx.bfloat16).reshape(value.shape)
        if value.nbytes >= SHARED_BYTES and dtype not in NOT_SHARED:
            return mx.from_dlpack(value)
        return mx.array(value, self._dtypes[dtype])

    def constant(self, value: Array) -> Any:
        return self.array(value)

    def numpy(self, array: Any) -> Array:
        """The memory of mlx's array, which NumPy keeps alive."""
        if array.dtype == mx.bfloat16:
            return np.asarray(array.view(mx.uint16)).view(DType.BF16.numpy).reshape(array.shape)
        return np.asarray(array)

    def cast(self, array: Any, dtype: DType) -> Any:
        return array.astype(self._dtypes[dtype])

    def failed(self, flag: Any) -> Any:
        if flag.size == 0:  # of NumPy's array without elements, mlx may say that not all are true
            return mx.array(0, mx.int32)
        return mx.logical_not(mx.all(flag)).astype(mx.int32)

    def stack(self, arrays: Sequence[Any]) -> Any:
        return mx.stack(list(arrays))

    # -- functions ---------------------------------------------------------------------------------

    compiles_at_first_call: ClassVar[bool] = True
    takes_numpy: ClassVar[bool] = True

    def compiled(self, function: Compiled, shapes: Sequence[Shape]) -> Compiled:
        fast, own, array = mx.compile(function), self._array_type, self.array

        def call(*arrays: Any) -> Sequence[Any]:
            return fast(*[a if isinstance(a, own) else array(a) for a in arrays])

        return call

    def acceptor(self, shapes: Sequence[Shape]) -> Callable[[Sequence[Any]], bool]:
        """Its own, and NumPy's, of the right dims and dtype: mlx would compile for others."""
        wanted = [(s.static_dims, self.dtype(s.dtype), s.dtype.numpy) for s in shapes]
        own = self._array_type

        def takes(values: Sequence[Any]) -> bool:
            for value, (dims, dtype, of_numpy) in zip(values, wanted):
                kind = dtype if isinstance(value, own) else of_numpy
                if not isinstance(value, (own, np.ndarray)) or value.dtype != kind:
                    return False
                if value.shape != dims:
                    return False
            return True

        return takes

    def begin(self, arrays: Sequence[Any]) -> None:
        mx.async_eval(*arrays)

    def wait(self, arrays: Sequence[Any]) -> None:
        mx.eval(*arrays)
