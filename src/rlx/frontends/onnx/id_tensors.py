"""Operators on tensors of codes: of strings, and of numbers that rlx has no dtype for.

An operator that only moves elements does the same to codes; one that computes is refused, unless
its handler says that it takes codes. What comes out is again a tensor of what the codes mean.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from rlx.frontends.onnx.handlers import takes_codes
from rlx.frontends.onnx.node_call import Call
from rlx.frontends.onnx.strings import TEXT, Strings
from rlx.frontends.onnx.values import Coded, Element, Items, Sizes, Value, Weight
from rlx.ir.mir import Node

ALL = range(1 << 16)
MOVES: Mapping[str, Sequence[int]] = {
    "Compress": (0,), "Concat": ALL, "ConcatFromSequence": (0,), "DepthToSpace": (0,),
    "Equal": ALL, "Expand": (0,), "Flatten": (0,), "Gather": (0,), "GatherElements": (0,),
    "GatherND": (0,), "OneHot": (2,), "Pad": (0, 2), "Reshape": (0,), "ReverseSequence": (0,),
    "Scatter": (0, 2), "ScatterElements": (0, 2), "ScatterND": (0, 2), "Shape": (0,), "Size": (0,),
    "Slice": (0,), "SpaceToDepth": (0,), "Split": (0,), "SplitToSequence": (0,), "Squeeze": (0,),
    "Tile": (0,), "Transpose": (0,), "Trilu": (0,), "Unsqueeze": (0,), "Where": (1, 2),
    "ArrayFeatureExtractor": (0,),
}  # fmt: skip
"""Operator → the operands whose elements it moves."""
TELLS = ("Equal", "Shape", "Size")
"""Those whose results are no elements of their operands."""
CARRIES = frozenset({
    "Identity", "If", "Loop", "Optional", "OptionalGetElement", "OptionalHasElement", "Scan",
    "SequenceAt", "SequenceConstruct", "SequenceErase", "SequenceInsert", "SequenceLength",
    "SequenceMap",
})  # fmt: skip
"""Those that hand values on as they are."""
BODIES: Mapping[str, tuple[tuple[str, ...], int]] = {
    "If": (("then_branch", "else_branch"), 0), "Loop": (("body",), 1), "Scan": (("body",), 0),
}  # fmt: skip
"""Control flow: the graphs inside, and which of their results is the operator's first."""


def element_of(value: Value | None) -> Element | None:
    """What the codes of a value mean; None where it is a tensor of numbers."""
    match value:
        case Coded(element=element):
            return element
        case Weight():
            return value.element
        case Items(values=values):
            return next((e for e in map(element_of, values) if e is not None), None)
        case _:
            return None


def in_codes(value: Value, strings: Strings) -> Value:
    """The codes themselves, as numbers."""
    match value:
        case Coded(codes=codes):
            return codes
        case Weight(name=name, array=array) if value.element is not None:
            what = f"tensor {name[:80]!r}"
            codes = strings.encode(array, what) if value.element is TEXT else _packed(value)
            return Weight(f"{name} as codes", codes)
        case Items(values=values):
            return Items(tuple(in_codes(v, strings) for v in values))
        case _:
            return value


def _packed(weight: Weight) -> np.ndarray[Any, Any]:
    assert weight.small is not None
    return weight.small.encode(weight.array, weight.name)


def meaning(value: Value, element: Element | None) -> Value:
    """Codes as a tensor of what they mean."""
    match value:
        case Node() if element is not None:
            return Coded(value, element)
        case Items(values=values):
            return Items(tuple(meaning(v, element) for v in values))
        case _:
            return value


Run = Callable[[Call], tuple[Value, ...]]


def applied_to_codes(call: Call, handler: Any, run: Run) -> tuple[Value, ...]:
    """What a handler gives, where operands may be codes."""
    elements = [element_of(v) for v in call.inputs]
    if call.op in CARRIES and call.domain == "":
        return _carried(call, run)
    if not any(elements) or takes_codes(handler):
        return run(call)
    if call.op not in MOVES:
        number = next(i for i, e in enumerate(elements) if e is not None)
        what = _named(elements[number])
        raise call.refused(f"operand {number} is a tensor of {what}, which it does not take")
    return _moved(call, elements, run)


def _moved(call: Call, elements: Sequence[Element | None], run: Run) -> tuple[Value, ...]:
    """Its elements moved as codes. Two floats of one byte may be equal by other bits: only strings
    are compared."""
    moved = [i for i in range(call.num_inputs) if i in MOVES[call.op] and call.has(i)]
    element = _agreed(call, elements, moved)
    if call.attr("reduction", "none") != "none" or (call.op == "Equal" and element is not TEXT):
        raise call.refused(f"it computes with a tensor of {_named(element)}")
    made = run(with_codes(call, moved))
    return made if call.op in TELLS else tuple(meaning(v, element) for v in made)


def with_codes(call: Call, numbers: Iterable[int]) -> Call:
    """The same call with these operands as codes."""
    strings, chosen = call.importer.strings, set(numbers)
    given = enumerate(call.inputs)
    inputs = tuple(in_codes(v, strings) if v is not None and i in chosen else v for i, v in given)
    return replace(call, inputs=inputs)


def _agreed(call: Call, elements: Sequence[Element | None], moved: Sequence[int]) -> Element:
    """The one type that all elements have."""
    found = {elements[i] for i in moved}
    strays = [i for i, e in enumerate(elements) if e is not None and i not in moved]
    if len(found) != 1 or strays or None in found:
        kinds = ", ".join(_named(e) for e in elements)
        raise call.refused(f"its operands are of different types ({kinds})")
    (element,) = found
    assert element is not None
    return element


def _named(element: Element | None) -> str:
    return "numbers" if element is None else f"{element.name}s"


def _carried(call: Call, run: Run) -> tuple[Value, ...]:
    """Values handed on; what comes out of control flow is what its graphs gave."""
    inputs = tuple(v if v is None else as_coded(call, v) for v in call.inputs)
    made = run(replace(call, inputs=inputs))
    if call.op not in BODIES:
        return made
    names, first = BODIES[call.op]
    found = [call.importer.elements.get(id(call.attrs.get(n)), ()) for n in names]
    elements = next((f for f in found if any(f)), ())[first:]
    padded = [*elements, *(None for _ in made[len(elements) :])]
    return tuple(meaning(v, e) for v, e in zip(made, padded))


def as_coded(call: Call, value: Value) -> Value:
    """A tensor that the model brings along, of codes, as a value of the graph."""
    return coded_in(call.scope, value)


def coded_in(scope: Any, value: Value) -> Value:
    element = element_of(value)
    if isinstance(value, Weight) and element is not None:
        return Coded(scope.as_node(in_codes(value, scope.importer.strings)), element)
    if isinstance(value, Items) and element is not None:
        return Items(tuple(coded_in(scope, v) for v in value.values))
    return value


def is_number(value: Value) -> bool:
    """Is it a tensor that rlx has a dtype for?"""
    return isinstance(value, Node | Sizes) or (isinstance(value, Weight) and value.element is None)
