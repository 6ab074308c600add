"""The four evaluators, each giving values or the reason why it gives none."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
from onnx import ModelProto, defs
from onnx.reference import ReferenceEvaluator

import rlx
from rlx.onnx_backend import Backend
from tests.onnx.differential.building import inputs_of, model_of
from tests.onnx.differential.drawing import PEER_OPSET, Array, Node


@dataclass(frozen=True, slots=True)
class Ran:
    """The values of all outputs, in order."""

    values: tuple[Array, ...]


@dataclass(frozen=True, slots=True)
class Refused:
    """No values. `kind`: absent (the evaluator is not there, or has no such operator, opset or
    dtype), rejects (it says that the model or its inputs are wrong), refused (an rlx.Error), or
    crashed (an exception that is nobody's message)."""

    kind: str
    reason: str


Outcome = Ran | Refused


def by_reference(node: Node) -> Outcome:
    """onnx.reference."""
    model = model_of([node])
    feeds = dict(zip((i.name for i in model.graph.input), inputs_of([node])))
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            made = ReferenceEvaluator(model).run(None, feeds)
    except Exception as error:
        return Refused("absent", _line(error))
    return Ran(tuple(map(np.asarray, made)))


@cache
def _onnxruntime() -> Any:
    try:
        import onnxruntime  # pyright: ignore[reportMissingImports]
    except ImportError:
        return None
    onnxruntime.set_default_logger_severity(4)
    return onnxruntime


UNIMPLEMENTED = (
    "ValidateOpsetForDomain", "NOT_IMPLEMENTED", "NotImplemented", "till opset",
    "is not a registered function/op",
    "Type Error: Type 'tensor(", "No Op registered for", "Unexpected input data type",
    "not currently supported", "type is not supported", "does not support", "not supported yet",
)  # fmt: skip


def by_onnxruntime(node: Node) -> Outcome:
    """onnxruntime, without rewrites of its own; in another opset where it has none for this one and
    the operator means the same there."""
    made: Outcome = Refused("absent", "")
    for opset in _opsets_for_peer(node):
        made = _asked(replace(node, opset=opset))
        if isinstance(made, Ran) or made.kind != "absent":
            break
    return made


def _opsets_for_peer(node: Node) -> list[int]:
    """The node's own; the newest that onnxruntime has, if that has the same version of the
    operator; and the one before opset 22, which only admitted bfloat16 to many operators."""
    if node.domain:
        return [node.opset]
    since = defs.get_schema(node.op, node.opset, node.domain).since_version
    newest = min(node.opset, PEER_OPSET) if since <= PEER_OPSET else node.opset
    return [newest, 21] if since == 22 else [newest]


def _asked(node: Node) -> Outcome:
    package = _onnxruntime()
    arrays = inputs_of([node])
    if package is None or any(a.dtype.name == "bfloat16" for a in arrays):
        return Refused("absent", "onnxruntime is not here, or has no arrays of this dtype")
    options = package.SessionOptions()
    options.graph_optimization_level = package.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    try:
        session = package.InferenceSession(model_of([node]).SerializeToString(), options)
        made = session.run(None, dict(zip((i.name for i in session.get_inputs()), arrays)))
    except Exception as error:
        text = _line(error)
        is_absent = any(word in text for word in UNIMPLEMENTED)
        return Refused("absent" if is_absent else "rejects", text)
    return Ran(tuple(map(np.asarray, made)))


def by_rlx(nodes: Sequence[Node], target: str) -> Outcome:
    return ran_by_rlx(model_of(nodes), inputs_of(nodes), target)


def ran_by_rlx(model: ModelProto, arrays: Sequence[Array], target: str) -> Outcome:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            return Ran(tuple(Backend.prepare(model, target).run(list(arrays))))
    except rlx.Error as error:
        return Refused("refused", _line(error))
    except Exception as error:
        return Refused("crashed", f"{type(error).__name__}: {_line(error)}")


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[:400]
