"""Calls of a model on tensors by native code: which can be made so, and how."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rlx.core.exchange import MAX_ORDERED, ExchangeCall, Given, Held, Watched
from rlx.frontends.torch.model import TorchModel
from rlx.frontends.torch.signature import Argument, RandomState, Result, Source, State
from rlx.frontends.torch.tensor_memory import state_of, tensor_class
from rlx.frontends.torch.watch import Watch
from rlx.ops.op import Array


def native_call(
    model: TorchModel, watch: Watch, places: Sequence[int | None], *, is_tuple: bool
) -> ExchangeCall | None:
    """How native code calls a model on tensors; None where a call has to do more than compute its
    outputs, or where tensors cannot be read."""
    signature, kind = model.signature, tensor_class()
    sources = [_source(s, model) for s in signature.given]
    orders = [(r.output, inverse(r.perm)) for r in signature.results if _is_plain(r)]
    outputs = [o for o, _ in orders if o is not None]
    is_plain = len(orders) == len(signature.results) and not signature.writes
    is_whole = sorted(outputs) == list(range(len(model.graph.outputs)))
    if kind is None or not is_plain or not is_whole or None in sources:
        return None
    watched = [Watched(t, p, state_of(kind, t)) for t, p in zip(watch.tensors, places, strict=True)]
    results = zip(outputs, [order for _, order in orders])
    known = [s for s in sources if s is not None]
    count = signature.num_arguments
    return ExchangeCall(
        kind,
        count,
        tuple(known),
        tuple(results),
        tuple(watched),
        is_tuple,
        _written(model),
        watch.digests,
    )


def _written(model: TorchModel) -> Array:
    """A record for each input that is written, of no memory yet."""
    inputs, states = len(model.signature.inputs), len(model.signature.states)
    made = np.zeros((states, 3), np.int64)
    made[:, 0] = range(inputs, inputs + states)
    return made


def _source(source: Source, model: TorchModel) -> Given | Held | None:
    match source:
        case Argument(place=place, order=order):
            return Given(place, order) if len(order or ()) <= MAX_ORDERED else None
        case State(target=target):
            return Held(model.state[target])
        case RandomState():
            return None


def _is_plain(result: Result) -> bool:
    return (
        result.output is not None
        and result.constant is None
        and result.views is None
        and not result.is_copy
    )


def inverse(perm: tuple[int, ...] | None) -> tuple[int, ...] | None:
    """The axis of an output that each axis of the result is."""
    return None if perm is None else tuple(np.argsort(perm).tolist())
