"""Arrays of other libraries, read and given without a copy: DLPack and the CUDA interface."""

from __future__ import annotations

import ctypes
import gc
import weakref
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import rlx
from rlx.backends.gpu.arrays.device_array import (
    DeviceArray,
    device_array,
    is_on_device,
)
from rlx.backends.gpu.arrays.exchange import Exchange
from rlx.backends.gpu.simulated import SimulatedDevice
from rlx.core import dlpack
from rlx.core.dlpack import (
    CPU,
    CUDA,
    DTYPES,
    VERSION,
    Described,
    DLTensor,
    ExchangeError,
    consume,
    produce,
)

Array = np.ndarray[Any, Any]
SEEN_BY_NUMPY = ["i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16", "?"]


def read(found: Described) -> Array:
    """The array that is described, in host memory."""
    span = sum((n - 1) * abs(s) for n, s in zip(found.shape, found.strides)) + 1
    raw = (ctypes.c_ubyte * (span * found.dtype.itemsize)).from_address(found.address)
    strides = [s * found.dtype.itemsize for s in found.strides]
    return np.ndarray(found.shape, found.dtype, raw, 0, strides)


def on_host(array: Array, **more: Any) -> DeviceArray:
    strides = tuple(s // array.itemsize for s in array.strides)
    at = array.ctypes.data
    return DeviceArray(at, array.shape, array.dtype, (CPU, 0), None, array, strides, **more)


class Waiting:
    """What is asked of a queue here: it notes what it orders."""

    device_id = CUDA, 0
    stream = 77

    def __init__(self) -> None:
        self.noted: list[tuple[str, int]] = []

    def wait_for(self, stream: int) -> None:
        self.noted.append(("waits for", stream))

    def release_to(self, stream: int) -> None:
        self.noted.append(("releases", stream))

    def share(self, address: int) -> None:
        self.shared = address

    def device_of(self, address: int) -> tuple[int, int]:
        return CUDA, address // (1 << 40)


# -- DLPack ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", SEEN_BY_NUMPY)
@pytest.mark.parametrize("version", [None, VERSION])
def test_capsules_of_numpy_are_read(kind: str, version: Any) -> None:
    x = np.arange(24).reshape(2, 3, 4).astype(kind)
    for view in (x, x.transpose(2, 0, 1), x[:, ::2], x[1, 1, 1, ...], x[:0]):
        found, is_readonly, owner = consume(view.__dlpack__(max_version=version))
        assert (found.device, found.dtype, found.shape) == ((CPU, 0), x.dtype, view.shape)
        assert not is_readonly
        if view.size:
            assert found.address == view.ctypes.data
            np.testing.assert_array_equal(read(found), view)
        del owner


def test_what_is_consumed_is_held_and_then_released() -> None:
    x = np.arange(5.0)
    seen = weakref.ref(x)
    found, _, owner = consume(x.__dlpack__())
    del x
    gc.collect()
    np.testing.assert_array_equal(read(found), np.arange(5.0))
    del owner
    gc.collect()
    assert seen() is None


def test_a_capsule_is_consumed_once() -> None:
    capsule = np.arange(5.0).__dlpack__()
    consume(capsule)
    for given in (capsule, None, 5):
        with pytest.raises(ExchangeError, match="consumed before"):
            consume(given)


@pytest.mark.parametrize("kind", SEEN_BY_NUMPY)
def test_numpy_reads_our_capsules(kind: str) -> None:
    x = np.arange(24).reshape(2, 3, 4).astype(kind)
    for view in (x, x.transpose(2, 0, 1), x[:, ::2], x[:0], x[1, 1, 1, ...]):
        got = np.from_dlpack(on_host(view))
        assert got.dtype == view.dtype
        np.testing.assert_array_equal(got, view)
        assert not view.size or got.ctypes.data == view.ctypes.data


def test_memory_is_held_while_somebody_has_the_capsule_or_the_array() -> None:
    owner = np.arange(6.0)
    seen = weakref.ref(owner)
    given = on_host(owner)
    got = np.from_dlpack(given)
    del owner, given
    gc.collect()
    np.testing.assert_array_equal(got, np.arange(6.0))
    del got
    gc.collect()
    assert seen() is None
    owner = np.arange(6.0)
    seen = weakref.ref(owner)
    for version in (None, VERSION):
        capsule = on_host(owner).__dlpack__(max_version=version)
        del capsule  # that nobody consumed
    del owner
    gc.collect()
    assert seen() is None


def test_what_may_only_be_read_stays_so() -> None:
    assert not np.from_dlpack(on_host(np.arange(3.0), is_readonly=True)).flags.writeable
    x = np.arange(3.0)
    x.flags.writeable = False
    assert consume(x.__dlpack__(max_version=VERSION))[1]


@pytest.mark.parametrize("code", DTYPES)
def test_every_dtype_goes_both_ways(code: tuple[int, int]) -> None:
    dtype = DTYPES[code]
    x = np.arange(6).astype(dtype).reshape(2, 3)
    found, _, _ = consume(on_host(x).__dlpack__(max_version=VERSION))
    assert found.dtype == dtype
    np.testing.assert_array_equal(read(found).view(np.uint8), x.view(np.uint8))


def test_bfloat16_and_eight_bits_are_known() -> None:
    assert DTYPES[4, 16] == np.dtype(ml_dtypes.bfloat16)
    assert DTYPES[10, 8] == np.dtype(ml_dtypes.float8_e4m3fn)
    assert DTYPES[12, 8] == np.dtype(ml_dtypes.float8_e5m2)


def test_unknown_numbers_are_refused() -> None:
    x = np.zeros(3, [("a", "i4")])
    with pytest.raises(ExchangeError, match="DLPack has no type for"):
        on_host(x).__dlpack__()
    tensor = DLTensor(0, CPU, 0, 0, 2, 32, 4, 0, 0, 0)
    with pytest.raises(ExchangeError, match="type 2 of 32 bits and 4 lanes"):
        dlpack.described(tensor)


def test_a_consumer_asks_for_what_is_not_given() -> None:
    given = on_host(np.arange(3.0))
    with pytest.raises(BufferError, match="the array is on cpu:0"):
        given.__dlpack__(dl_device=(CUDA, 0))
    with pytest.raises(rlx.Error, match="without a copy only"):
        given.__dlpack__(copy=True)


# -- order ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stream", "noted"),
    [(None, [("releases", 1)]), (-1, []), (2, [("releases", 2)]), (123, [("releases", 123)])],
)
def test_the_consumers_stream_waits_for_the_queue(stream: Any, noted: Any) -> None:
    queue = Waiting()
    DeviceArray(4096, (3,), np.dtype("f4"), (CUDA, 0), queue).__dlpack__(stream=stream)
    assert queue.noted == noted


@dataclass
class Foreign:
    """A library's array, on a device."""

    device: tuple[int, int] = (CUDA, 0)
    asked: list[Any] = field(default_factory=list[Any])

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device

    def __dlpack__(self, *, stream: Any = None, max_version: Any = None) -> Any:
        self.asked.append((stream, max_version))
        given = Described(4096, self.device, np.dtype("f4"), (2, 3), (1, 2))
        return produce(given, self, is_versioned=max_version is not None, is_readonly=False)


class Older(Foreign):
    """One from before there were versions."""

    def __dlpack__(self, *, stream: Any = None) -> Any:  # type: ignore[override]
        return super().__dlpack__(stream=stream)


@pytest.mark.parametrize("kind", [Foreign, Older])
def test_the_producer_is_told_the_queues_stream(kind: type[Foreign]) -> None:
    queue, value = Waiting(), kind()
    assert is_on_device(value)
    made = device_array(value, queue)
    assert value.asked[0][0] == 77
    assert (made.address, made.shape, made.strides) == (4096, (2, 3), (1, 2))
    assert not made.is_contiguous


def test_arrays_on_another_device_are_refused() -> None:
    with pytest.raises(ExchangeError, match=r"x is on cuda:1 and the model on cuda:0. Move it"):
        device_array(Foreign((CUDA, 1)), Waiting(), "x")
    with pytest.raises(ExchangeError, match="y is list, which has neither"):
        device_array([1], Waiting(), "y")


def test_our_own_arrays_are_ordered_between_queues() -> None:
    first, second = Waiting(), Waiting()
    given = DeviceArray(4096, (3,), np.dtype("f4"), (CUDA, 0), first)
    assert device_array(given, first) is given
    assert device_array(given, second) is given
    assert (first.noted, second.noted) == ([], [("waits for", 77)])


# -- the CUDA array interface ---------------------------------------------------------------------


@dataclass
class Interfaced:
    __cuda_array_interface__: dict[str, Any]


def test_the_interface_goes_both_ways() -> None:
    queue = Waiting()
    given = DeviceArray(4096, (2, 3), np.dtype("f4"), (CUDA, 0), queue, None, (1, 2), True)
    made = device_array(Interfaced(given.__cuda_array_interface__), queue)
    assert (made.address, made.shape, made.strides) == (4096, (2, 3), (1, 2))
    assert made.is_readonly
    assert queue.noted == [("waits for", 77)]
    plain = {"shape": (2, 3), "typestr": "<i8", "data": (512, False), "version": 2}
    made = device_array(Interfaced(plain), queue)
    assert (made.strides, made.dtype, made.is_contiguous) == ((3, 1), np.dtype("i8"), True)
    assert is_on_device(Interfaced(plain))
    with pytest.raises(ExchangeError, match="on cuda:3 and"):
        device_array(Interfaced(plain | {"data": (3 << 40, False)}), queue)
    for more, why in (({"mask": 1}, "with a mask"), ({"strides": (3, 1)}, "no whole elements")):
        with pytest.raises(ExchangeError, match=why):
            device_array(Interfaced(plain | more), queue)


def test_arrays_without_the_interface_say_so() -> None:
    half = DeviceArray(4096, (2,), np.dtype(ml_dtypes.bfloat16), (CUDA, 0))
    small = DeviceArray(4096, (2,), np.dtype(ml_dtypes.float8_e5m2), (CUDA, 0))
    assert not hasattr(half, "__cuda_array_interface__")
    assert not hasattr(small, "__cuda_array_interface__")
    assert not hasattr(on_host(np.arange(3)), "__cuda_array_interface__")
    assert not is_on_device(np.arange(3))
    assert not is_on_device([1])
    assert not is_on_device(on_host(np.arange(3)))


# -- to the host ----------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16, ml_dtypes.float8_e5m2])
def test_arrays_of_any_strides_are_copied_to_the_host(dtype: Any) -> None:
    device = SimulatedDevice()
    queue = device.queue()
    x = np.arange(60).astype(dtype).reshape(3, 4, 5)
    memory = device.allocate(x.nbytes)
    queue.write(memory.address, x)
    for view in (x, x.transpose(2, 0, 1), x[::-1, 1:, ::-2], x[1], x[:0], x[2, 3, 4, ...]):
        offset = view.ctypes.data - x.ctypes.data if view.size else 0
        strides = tuple(s // x.itemsize for s in view.strides)
        made = DeviceArray(
            memory.address + offset, view.shape, x.dtype, (12, 0), queue, memory, strides
        )
        np.testing.assert_array_equal(made.numpy(), view)
        np.testing.assert_array_equal(np.asarray(made), view)
        assert made.nbytes == view.nbytes
        if view.ndim:
            assert len(made) == len(view)
    with pytest.raises(rlx.Error, match="no queue reads it"):
        DeviceArray(0, (1,), x.dtype, (12, 0)).numpy()


# -- the table of C functions ---------------------------------------------------------------------


def test_arrays_are_described_by_the_librarys_functions() -> None:
    shape, strides = (ctypes.c_int64 * 2)(3, 4), (ctypes.c_int64 * 2)(4, 1)
    tensor = DLTensor(
        8192, CUDA, 1, 2, 4, 16, 1, ctypes.addressof(shape), ctypes.addressof(strides), 64
    )

    def tensor_of(value: Any, to: int) -> int:
        ctypes.memmove(to, ctypes.addressof(tensor), ctypes.sizeof(tensor))
        return 0

    def stream_of(kind: int, number: int, to: int) -> int:
        ctypes.c_void_p.from_address(to).value = 1000 * kind + number
        return 0

    of = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_void_p)(tensor_of)
    stream = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_int32, ctypes.c_void_p)(
        stream_of
    )
    addresses = [ctypes.cast(f, ctypes.c_void_p).value for f in (of, stream)]
    table = (ctypes.c_uint64 * 7)(1 | 3 << 32, 0, 0, 0, 0, *addresses)
    name = ctypes.c_char_p(b"dlpack_exchange_api")
    new = ctypes.PYFUNCTYPE(ctypes.py_object, *[ctypes.c_void_p] * 3)(
        ("PyCapsule_New", ctypes.pythonapi)
    )
    capsule = new(ctypes.addressof(table), ctypes.cast(name, ctypes.c_void_p), None)
    kind = type("Tensor", (), {"__dlpack_c_exchange_api__": capsule})
    exchange = Exchange.of(kind)
    assert exchange is not None
    bf16 = np.dtype(ml_dtypes.bfloat16)
    assert exchange.described(kind()) == (8192 + 64, (CUDA, 1), bf16, (3, 4), (4, 1))
    assert exchange.stream((CUDA, 1)) == 2001
    queue: Any = Waiting()
    queue.device_id = CUDA, 1
    value = kind()
    made = device_array(value, queue)
    assert (made.address, made.dtype, made.shape, made.owner) == (8256, bf16, (3, 4), value)
    assert queue.noted == [("waits for", 2001)]
    queue.device_id = CUDA, 0
    with pytest.raises(ExchangeError, match="is on cuda:1"):
        device_array(value, queue)
    tensor.lanes = 2
    with pytest.raises(ExchangeError, match=r"x cannot be exchanged: an array of .* 2 lanes"):
        device_array(value, queue, "x")
    assert Exchange.of(int) is None
    table[0] = 2
    assert Exchange.of(kind) is None  # of a later major version
