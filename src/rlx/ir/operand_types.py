"""The types of operands and attributes, as the signatures of ops state them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from rlx.core.dim import Dim
from rlx.core.dtype import DType
from rlx.core.shape import Shape
from rlx.ir.mir import Node
from rlx.ops.pattern import Pattern, Var

Array: TypeAlias = NDArray[Any]
Value: TypeAlias = "Array | np.generic | bool | int | float | complex | Sequence[Value]"
"""What is known now."""
Operand: TypeAlias = "Node | Dim | Value"
Symbol: TypeAlias = Var | Pattern | Shape
"""What stands for a value."""
DTypeLike: TypeAlias = DType | str | type | np.dtype[Any]
