"""ONNX's own test cases of its operators: models of one node, with inputs and expected outputs."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from onnx.backend.test.case import node as package
    from onnx.helper import get_attribute_value


@dataclass(frozen=True)
class OnnxCase:
    """One node, what it is given and what it must give; None stands for what is left out."""

    name: str
    attrs: dict[str, Any]
    inputs: list[np.ndarray | None]
    outputs: list[np.ndarray | None]


def cases(page: str, op_type: str) -> list[OnnxCase]:
    """The cases of `op_type` on one page of ONNX's tests, which register when it is imported."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        importlib.import_module(f"{package.__name__}.{page}")
    registered = package._NodeTestCases
    return [
        _read(c)
        for c in registered
        if len(c.model.graph.node) == 1 and c.model.graph.node[0].op_type == op_type
    ]


def on_cases(page: str, op_type: str) -> Callable[[Callable[[OnnxCase], None]], Callable[[], None]]:
    """A test of each of them. They are made when it runs, not when it is collected: ONNX takes
    seconds to compute some, and every worker collects every test."""

    def decorated(test: Callable[[OnnxCase], None]) -> Callable[[], None]:
        def on_all() -> None:
            found = cases(page, op_type)
            assert found
            for case in found:
                try:
                    test(case)
                except Exception as error:
                    error.add_note(f"ONNX's case {case.name}")
                    raise

        return on_all

    return decorated


def _read(case: Any) -> OnnxCase:
    (node,), (inputs, outputs) = case.model.graph.node, case.data_sets[0]
    attrs = {a.name: _text(get_attribute_value(a)) for a in node.attribute}
    return OnnxCase(case.name, attrs, _placed(node.input, inputs), _placed(node.output, outputs))


def _placed(names: Any, values: Any) -> list[np.ndarray | None]:
    given = iter(values)
    return [next(given) if name else None for name in names]


def _text(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode()
    return tuple(map(_text, value)) if isinstance(value, list | tuple) else value


def padding(attrs: dict[str, Any], image: tuple[int, ...], spans: list[int]) -> tuple[int, ...]:
    """Explicit padding of a window, whichever way the node gives it."""
    auto, axes = attrs.get("auto_pad", "NOTSET"), len(image)
    if not auto.startswith("SAME"):
        return tuple(attrs.get("pads", (0,) * (2 * axes)))
    strides = attrs.get("strides", (1,) * axes)
    total = [max(0, (-(-n // s) - 1) * s + k - n) for n, s, k in zip(image, strides, spans)]
    half = [t // 2 for t in total]
    more = [t - h for t, h in zip(total, half)]
    return (*half, *more) if auto == "SAME_UPPER" else (*more, *half)
