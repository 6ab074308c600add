"""The argument of an operator handler: one node of the model, its operands and attributes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from rlx.core.dim import Dim, DimLike, is_static
from rlx.core.errors import GraphError, UnsupportedError
from rlx.core.extent import is_measured
from rlx.core.shape import Shape
from rlx.frontends.onnx.data_dependent_sizes import MAX_ELEMENTS, element, scalar, sizes_of_data
from rlx.frontends.onnx.values import Coded, Sizes, Value, Weight
from rlx.ir.mir import Graph, Node

if TYPE_CHECKING:
    from rlx.frontends.onnx.importer import Importer
    from rlx.frontends.onnx.scope import Scope


class NeedsValue(UnsupportedError):
    """A shape follows from the values of inputs: it is known when they are."""

    def __init__(self, what: str, inputs: Sequence[str]) -> None:
        super().__init__(what)
        self.inputs = tuple(inputs)


class NeedsShape(UnsupportedError):
    """Something follows from the sizes of inputs, which the model does not say."""


class Refused(UnsupportedError):
    """What no sizes of operands would make possible, such as types that an operator has not."""


@dataclass(frozen=True, slots=True)
class Call:
    """One node. `op` is the operator's name, `version` the opset it is read under."""

    importer: Importer
    scope: Scope
    name: str
    op: str
    domain: str
    version: int
    attrs: Mapping[str, Any]
    """By name: ints, floats, strs, arrays, tuples of those, and GraphProtos."""
    inputs: tuple[Value | None, ...]
    outputs: tuple[str, ...]
    """The names of the results; "" where nothing wants one."""

    @property
    def graph(self) -> Graph:
        """The graph that is being built."""
        return self.scope.graph

    @property
    def num_inputs(self) -> int:
        return len(self.inputs)

    def has(self, number: int) -> bool:
        """Is this operand given?"""
        return number < len(self.inputs) and self.inputs[number] is not None

    def wants(self, number: int) -> bool:
        """Does anything name this result?"""
        return number < len(self.outputs) and self.outputs[number] != ""

    # -- operands -------------------------------------------------------------------------------

    def value(self, number: int) -> Value:
        found = self.inputs[number] if number < len(self.inputs) else None
        if found is None:
            raise GraphError(f"{self.label}: operand {number} is missing")
        return found

    def node(self, number: int) -> Node:
        """The operand as a value of the graph."""
        return self.as_node(self.value(number))

    def optional(self, number: int) -> Node | None:
        return self.node(number) if self.has(number) else None

    def nodes(self) -> list[Node]:
        return [self.node(i) for i in range(len(self.inputs))]

    def as_node(self, value: Value) -> Node:
        match value:
            case Sizes():
                return value.node(self.graph)
            case Weight():
                return self.scope.weight(value)
            case Coded(codes=codes):
                return codes
            case Node():
                return value
            case _:
                raise UnsupportedError(f"{self.label}: an operand is no tensor: a sequence or map")

    def shape(self, number: int) -> Shape:
        """Of an operand, without making it a value of the graph."""
        match self.value(number):
            case Sizes(shape=dims, dtype=dtype):
                return Shape(dims, dtype)
            case Weight() as weight:
                return Shape(weight.array.shape, weight.dtype)
            case _:
                return self.node(number).shape

    @property
    def has_named_sizes(self) -> bool:
        """May what it cannot do for all sizes be done for those of a call?"""
        nodes = [v for v in self.inputs if isinstance(v, Node)]
        dims = [d for n in nodes if not n.has_items for d in n.shape.dims]
        return any(isinstance(d, Dim) and not d.is_measured for d in dims)

    def rank(self, number: int) -> int:
        return self.shape(number).rank

    def axis(self, value: int, rank: int) -> int:
        """An axis counted from the front."""
        if not -rank <= value < rank:
            raise GraphError(f"{self.label}: axis {value} is not one of rank {rank}")
        return value % rank if rank else 0

    # -- what must be known ---------------------------------------------------------------------

    def sizes(self, number: int) -> Sizes:
        """An integer operand as dims; an error where it depends on data."""
        found = self.importer.as_sizes(self.value(number)) or self._measured(number)
        if found is None:
            raise self._unknown(number)
        return found

    def _measured(self, number: int) -> Sizes | None:
        """An operand that is computed, as sizes that are found out while the model runs."""
        value = self.value(number)
        if not isinstance(value, Node) or not self.importer.may_measure(value):
            return None
        return sizes_of_data(value)

    def may_measure(self, *numbers: int) -> bool:
        """May sizes follow from these operands that are found out while the model runs?"""
        found = [v for v in map(self.value, numbers) if isinstance(v, Node)]
        return any(self.importer.may_measure(v) for v in found)

    def is_computed(self, number: int) -> bool:
        """Is this operand, which decides a shape, known only while the model runs?"""
        known = self.importer.as_sizes(self.value(number))
        if known is None:
            return self.may_measure(number)
        return any(map(is_measured, known.dims))

    def ends(self, number: int) -> list[DimLike | Node]:
        """An integer operand element by element: sizes where the graph says what they are, else
        values, which may be negative."""
        value = self.value(number)
        known = self.importer.as_sizes(value)
        if known is not None or not isinstance(value, Node) or not self.may_measure(number):
            return list(self.dims(number))
        count = int(self.shape(number).static_dims[0]) if value.shape.rank else 1
        if count > MAX_ELEMENTS:
            raise self.refused(
                f"operand {number} has {count:,} elements, more than tensors have axes"
            )
        found = [element(value, i) for i in range(count)]
        return [scalar(value, i) if d is None else d for i, d in enumerate(found)]

    def dims(self, number: int) -> list[DimLike]:
        return list(self.sizes(number).dims)

    def ints(self, number: int) -> list[int]:
        """Numbers that must be known, such as axes."""
        sizes = self.importer.as_sizes(self.value(number))
        if sizes is None:
            raise self._unknown(number)
        found = list(sizes.dims)
        for dim in found:
            if is_measured(dim):
                raise self.unsupported(f"operand {number} follows from a size found at run time")
            if not is_static(dim):
                raise NeedsShape(f"{self.label}: operand {number} depends on the size {dim}")
        return [int(d) for d in found]

    def array(self, number: int) -> np.ndarray[Any, Any]:
        """An operand of any dtype whose value must be known."""
        found = self.importer.as_array(self.value(number))
        if found is None:
            raise self._unknown(number)
        return found

    def is_known(self, number: int) -> bool:
        return self.has(number) and self.importer.as_array(self.value(number)) is not None

    def _unknown(self, number: int) -> UnsupportedError:
        return self.unknown(
            self.value(number),
            f"operand {number} decides a shape, and depends on data. "
            "Make it a constant of the model",
        )

    def unknown(self, value: Value, why: str) -> UnsupportedError:
        """The error of a value that must be known and is not."""
        return self.importer.unknown(value, f"{self.label}: {why}")

    # -- attributes -----------------------------------------------------------------------------

    def attr(self, name: str, default: Any = None) -> Any:
        return self.attrs.get(name, default)

    def required(self, name: str) -> Any:
        if name not in self.attrs:
            raise GraphError(f"{self.label}: attribute {name!r} is missing")
        return self.attrs[name]

    # -- messages -------------------------------------------------------------------------------

    @property
    def label(self) -> str:
        named = f" {self.name[:80]!r}" if self.name else ""
        return f"ONNX {self.op[:80]}{named}"

    def unsupported(self, why: str) -> UnsupportedError:
        return UnsupportedError(f"{self.label}: {why}")

    def refused(self, why: str) -> Refused:
        return Refused(f"{self.label}: {why}")

    def needs_shape(self, why: str) -> NeedsShape:
        """The error of a size that must be known: the model is then read for each shape."""
        return NeedsShape(f"{self.label}: {why}")
