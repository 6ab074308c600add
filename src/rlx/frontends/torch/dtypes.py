"""Dtypes and memory of tensors: torch's as ours, without copies."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np

from rlx.core.dtype import DType
from rlx.core.errors import UnsupportedError
from rlx.frontends.torch.namespaces import torch
from rlx.ops.op import Array

_NAMES = {
    "bool": "bool", "uint8": "u8", "uint16": "u16", "uint32": "u32", "uint64": "u64",
    "int8": "i8", "int16": "i16", "int32": "i32", "int64": "i64",
    "float16": "f16", "bfloat16": "bf16", "float32": "f32", "float64": "f64",
    "complex64": "c64", "complex128": "c128",
}  # fmt: skip


@functools.cache
def _dtypes() -> Mapping[Any, DType]:
    return {getattr(torch, name): DType.of(ours) for name, ours in _NAMES.items()}


@functools.cache
def _torch_dtypes() -> Mapping[DType, Any]:
    return {ours: theirs for theirs, ours in _dtypes().items()}


def dtype_of(dtype: Any) -> DType:
    """Ours for torch's."""
    found = _dtypes().get(dtype)
    if found is None:
        raise UnsupportedError(
            f"rlx has no dtype for {dtype}. Cast the tensor before: x.to(torch.float32)"
        )
    return found


def torch_dtype(dtype: DType) -> Any:
    """Torch's for ours."""
    return _torch_dtypes()[dtype]


def array_of(tensor: Any) -> Array:
    """The memory of a tensor on the host; a copy only where its values are stored lazily conjugated
    or negated."""
    held = tensor.detach()
    if held.device.type != "cpu":
        raise UnsupportedError(
            f"a tensor is on {held.device}, and the program runs in the host's memory. "
            "Move it there with .cpu()"
        )
    if held.is_conj() or held.is_neg():
        held = held.resolve_conj().resolve_neg()
    if held.dtype is torch.bfloat16:
        return held.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return held.numpy()


def tensor_of(array: Array) -> Any:
    """A tensor on the memory of an array; one without elements has torch's strides."""
    if array.size == 0:
        return torch.empty(array.shape, dtype=torch_dtype(DType.of(array.dtype)))
    owned = array if array.flags.writeable else array.copy()
    if owned.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(owned.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(owned)


def require_dense(tensor: Any, what: str) -> None:
    """Tensors of other layouts than rows and strides have no memory that rlx can read."""
    if tensor.layout is not torch.strided:
        raise UnsupportedError(f"{what} is a {tensor.layout} tensor; rlx takes dense ones")
    if tensor.is_quantized:
        raise UnsupportedError(
            f"{what} is a quantised tensor, whose scales rlx does not read. Dequantise it before"
        )
