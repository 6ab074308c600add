"""Conversion of callers' values to NumPy arrays."""

from __future__ import annotations

from typing import Any

import numpy as np

from rlx.core.errors import Error


def as_array(value: Any, what: str) -> np.ndarray[Any, Any]:
    """`value` as a NumPy array, without a copy where it offers DLPack."""
    try:
        if isinstance(value, np.ndarray) or not hasattr(value, "__dlpack__"):
            return np.asarray(value)
        return np.from_dlpack(value)
    except (TypeError, ValueError, BufferError, RuntimeError) as error:
        raise Error(f"{what} cannot be read as an array: {error}") from None
