"""An array in a device's memory, and how other libraries' arrays become one.

Nothing is copied. Order between the queues of rlx and other libraries' streams is kept on the
device: what reads an array waits there for what writes it, and no host waits.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from rlx.backends.gpu.arrays.exchange import Exchange
from rlx.backends.gpu.device import Array, Queue
from rlx.core.dlpack import (
    CPU,
    CUDA,
    CUDA_HOST,
    CUDA_MANAGED,
    METAL,
    ROCM,
    VERSION,
    WEBGPU,
    Described,
    ExchangeError,
    consume,
    dense,
    produce,
)
from rlx.core.errors import UnsupportedError

NO_ORDER = -1
"""As a consumer's stream: it takes care of the order itself."""
LEGACY_STREAM = {CUDA: 1, CUDA_MANAGED: 1, ROCM: 0}
"""The stream that is meant where a consumer names none."""
NUMPYS_OWN = 1
"""`isbuiltin` of NumPy's dtypes; those of other packages have no code in a `typestr`."""
DEVICE_NAMES = {
    CPU: "cpu", CUDA: "cuda", CUDA_HOST: "pinned host memory", METAL: "metal", ROCM: "rocm",
    WEBGPU: "wgpu",
}  # fmt: skip


class NoInterfaceError(UnsupportedError, AttributeError):
    """The array has no such interface; `hasattr` says so."""


class DeviceArray:
    """An array on a device; strides count elements. It holds its memory, and nothing of it changes:
    it is no dataclass because making one counts in every call."""

    __slots__ = (
        "__weakref__", "address", "device", "dtype", "is_readonly", "owner", "queue", "shape",
        "strides",
    )  # fmt: skip

    def __init__(
        self,
        address: int,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        device: tuple[int, int],
        queue: Queue | None = None,
        owner: Any = None,
        strides: tuple[int, ...] | None = None,
        is_readonly: bool = False,
    ) -> None:
        self.address, self.shape, self.dtype = address, shape, dtype
        self.device = device
        """Kind and number, as DLPack counts them."""
        self.queue = queue
        """Where it is written; None where it is ready."""
        self.owner = owner
        self.strides = dense(shape) if strides is None else strides
        self.is_readonly = is_readonly

    def __repr__(self) -> str:
        shape = ", ".join(map(str, self.shape))
        return f"DeviceArray({self.dtype}[{shape}] on {named(self.device)})"

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.itemsize

    @property
    def is_contiguous(self) -> bool:
        """In row-major order; axes of one element and empty arrays have any strides."""
        wanted = dense(self.shape)
        return (
            self.strides == wanted
            or self.size == 0
            or all(n == 1 or a == b for n, a, b in zip(self.shape, self.strides, wanted))
        )

    @property
    def stand(self) -> Array:
        """What NumPy checks in its place: an array of this shape and dtype, without memory."""
        return np.broadcast_to(np.zeros((), self.dtype), self.shape)

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("an array without axes has no length.")
        return self.shape[0]

    # -- to the host -----------------------------------------------------------------------------

    def numpy(self, queue: Queue | None = None) -> Array:
        """A copy of it on the host."""
        found = queue or self.queue
        if found is None:
            raise UnsupportedError(
                "this array came from another library and no queue reads it. Copy it to the host "
                "there."
            )
        if not self.is_contiguous:
            return self._strided(found)
        made = np.empty(self.shape, self.dtype)
        found.read(self.address, made)
        found.wait()
        return made

    def _strided(self, queue: Queue) -> Array:
        """All bytes from the first element to the last, then a copy of the view of them."""
        reach = [(n - 1) * s for n, s in zip(self.shape, self.strides)]
        first, last = sum(min(0, r) for r in reach), sum(max(0, r) for r in reach)
        size = self.dtype.itemsize
        raw = np.empty((last - first + 1) * size, np.uint8)
        queue.read(self.address + first * size, raw)
        queue.wait()
        strides = [s * size for s in self.strides]
        return np.ndarray(self.shape, self.dtype, raw, -first * size, strides).copy()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        made = self._view() if copy is False else self.numpy()
        if copy is False and dtype not in (None, made.dtype):
            raise ExchangeError(f"an array of {made.dtype} becomes one of {dtype} by a copy only.")
        return made if dtype is None else made.astype(dtype, copy=False)

    def _view(self) -> Array:
        """The same memory, where host and device share it."""
        is_whole = self.queue is not None and self.is_contiguous
        found = self.queue.view(self.address, self.nbytes) if self.queue and is_whole else None
        if found is None:
            raise ExchangeError("an array on a device becomes NumPy's by a copy only.")
        return np.asarray(_Held(self, found)).view(self.dtype).reshape(self.shape)

    # -- to other libraries ----------------------------------------------------------------------

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device

    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        if dl_device is not None and tuple(map(int, dl_device)) != self.device:
            raise ExchangeError(f"the array is on {named(self.device)}; copy it there first.")
        if copy:
            raise ExchangeError("the array is given without a copy only; copy it after.")
        if self.device[0] == WEBGPU:
            raise ExchangeError(
                "memory of WebGPU has no addresses that other libraries could use. Copy the array "
                "to the host: array.numpy()."
            )
        self._order_before(stream)
        given = Described(self.address, self.device, self.dtype, self.shape, self.strides)
        is_versioned = max_version is not None and tuple(max_version) >= VERSION
        return produce(given, self, is_versioned=is_versioned, is_readonly=self.is_readonly)

    def _order_before(self, stream: int | None) -> None:
        """The consumer's stream waits for what writes the array."""
        if self.queue is None:
            return
        self.queue.share(self.address)
        if stream == NO_ORDER:
            return
        if self.device[0] == CPU:
            self.queue.wait()
        else:
            self.queue.release_to(
                LEGACY_STREAM.get(self.device[0], 0) if stream is None else stream
            )

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        if self.device[0] not in (CUDA, CUDA_MANAGED):
            raise NoInterfaceError(f"the array is on {named(self.device)}, not on a CUDA device.")
        if self.dtype.isbuiltin != NUMPYS_OWN:
            raise NoInterfaceError(f"the CUDA array interface has no {self.dtype}; use DLPack.")
        found: dict[str, Any] = {
            "shape": self.shape,
            "typestr": self.dtype.str,
            "data": (self.address, self.is_readonly),
            "strides": None if self.is_contiguous else tuple(
                s * self.dtype.itemsize for s in self.strides
            ),
            "version": 3,
        }  # fmt: skip
        if self.queue is not None:
            self.queue.share(self.address)
            found["stream"] = self.queue.stream
        return found


class _Held:
    """Bytes that an array owns, for as long as somebody looks at them."""

    def __init__(self, owner: DeviceArray, held: Array) -> None:
        self.owner = owner
        self.__array_interface__ = held.__array_interface__


def named(device: tuple[int, int]) -> str:
    """cuda:0."""
    return f"{DEVICE_NAMES.get(device[0], f'a device of kind {device[0]}')}:{device[1]}"


# -- from other libraries -------------------------------------------------------------------------


def is_on_device(value: Any) -> bool:
    """Is it an array in a device's memory, of whatever library?"""
    if isinstance(value, DeviceArray):
        return value.device[0] not in (CPU, CUDA_HOST)
    if isinstance(value, np.ndarray):
        return False
    if hasattr(value, "__dlpack_device__"):
        return int(value.__dlpack_device__()[0]) not in (CPU, CUDA_HOST)
    return hasattr(value, "__cuda_array_interface__")


def current_stream(values: Iterable[Any]) -> int | None:
    """The stream that the library of the first such array works on now, where it says so."""
    for value in values:
        table = None if isinstance(value, DeviceArray) else _table(type(value))
        if table is not None and is_on_device(value):
            return table.stream(table.described(value).device)
    return None


def device_array(value: Any, queue: Queue, name: str = "array") -> DeviceArray:
    """An array of any library that is on the queue's device. What is enqueued from now on comes
    after what writes it.

    The library may reuse the memory as soon as nobody holds the array, in the order of its own
    stream: whoever enqueues work on it lets that stream wait (`Queue.release_to`), or enqueues the
    work there (`Device.queue(stream)`).
    """
    if isinstance(value, DeviceArray):
        made = value
        if made.queue is not None and made.queue is not queue:
            queue.wait_for(made.queue.stream)
    elif (table := _table(type(value))) is not None:
        made = _from_table(table, value, queue, name)
    elif hasattr(value, "__dlpack__"):
        made = _from_dlpack(value, queue, name)
    elif hasattr(value, "__cuda_array_interface__"):
        made = _from_interface(value.__cuda_array_interface__, value, queue)
    else:
        raise ExchangeError(
            f"{name} is {type(value).__name__}, which has neither __dlpack__ nor "
            "__cuda_array_interface__. Give a NumPy array, or one of a library that has."
        )
    if made.device != queue.device_id:
        raise ExchangeError(
            f"{name} is on {named(made.device)} and the model on {named(queue.device_id)}. Move it "
            "there, or compile the model for that device."
        )
    return made


def stream_of(value: Any, device: tuple[int, int]) -> int:
    """The stream on which another library works on its array: the one that it says, else the one
    that is meant where none is said."""
    table = _table(type(value))
    if table is not None:
        return table.stream(device)
    given = getattr(value, "__cuda_array_interface__", None) or {}
    return given.get("stream") or LEGACY_STREAM.get(device[0], 0)


@functools.lru_cache(maxsize=64)
def _table(kind: type) -> Exchange | None:
    """The functions of an array type; looking them up takes as long as a call of them."""
    return Exchange.of(kind)


def _from_table(table: Exchange, value: Any, queue: Queue, name: str) -> DeviceArray:
    """By the library's functions, which take a part of the time of a capsule."""
    try:
        address, device, dtype, shape, strides = table.described(value)
    except (BufferError, RuntimeError, ValueError, TypeError) as error:
        raise ExchangeError(f"{name} cannot be exchanged: {error}") from None
    if dtype.kind == "c":  # torch conjugates on reading, which a capsule refuses and this does not
        return _from_dlpack(value, queue, name)
    if device == queue.device_id:
        queue.wait_for(table.stream(device))
    return DeviceArray(address, shape, dtype, device, None, value, strides)


def _from_dlpack(value: Any, queue: Queue, name: str) -> DeviceArray:
    try:
        try:
            capsule = value.__dlpack__(stream=queue.stream, max_version=VERSION)
        except TypeError:  # a library from before there were versions
            capsule = value.__dlpack__(stream=queue.stream)
    except (BufferError, RuntimeError, ValueError) as error:
        raise ExchangeError(f"{name} cannot be exchanged: {error}") from None
    found, is_readonly, owner = consume(capsule)
    return DeviceArray(
        found.address, found.shape, found.dtype, found.device, None, owner, found.strides,
        is_readonly,
    )  # fmt: skip


def _from_interface(given: dict[str, Any], value: Any, queue: Queue) -> DeviceArray:
    dtype, shape = np.dtype(given["typestr"]), tuple(given["shape"])
    if given.get("mask") is not None:
        raise ExchangeError("an array with a mask cannot be exchanged. Fill it before.")
    strides = given.get("strides")
    counted = dense(shape) if strides is None else tuple(s // dtype.itemsize for s in strides)
    if strides is not None and any(s % dtype.itemsize for s in strides):
        raise ExchangeError("strides that are no whole elements cannot be exchanged.")
    if given.get("stream") is not None:
        queue.wait_for(given["stream"])
    address, is_readonly = given["data"]
    device = queue.device_of(address) if address else queue.device_id
    return DeviceArray(address, shape, dtype, device, None, value, counted, is_readonly)
