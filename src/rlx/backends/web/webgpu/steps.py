"""Steps of routines as JSON: what `js/call.js` runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from rlx.backends.gpu.runtime.parts import Part, Segment, parts_of
from rlx.backends.gpu.runtime.routine import (
    AnyStep,
    BranchStep,
    CallStep,
    ChoiceStep,
    CopyStep,
    Enqueued,
    Found,
    HostStep,
    LaunchStep,
    Place,
    Routine,
    ScanStep,
    SizesStep,
    Span,
    WhileStep,
)
from rlx.core.dim import DimLike, dim_max, dim_min, product, provably_le
from rlx.core.errors import UnsupportedError
from rlx.ir.json_form import dim_json

Json = dict[str, Any]


def check_runs_alone(routines: Iterable[Routine]) -> None:
    """Refuse what only a host with NumPy does, each node with the reason."""
    steps = [s for r in routines for s in (*r.prologue, *r.steps) if isinstance(s, HostStep)]
    if steps:
        named = "; ".join(dict.fromkeys(f"{s.label}: {s.op}" for s in steps))
        raise UnsupportedError(
            f"the model cannot be exported for browsers: {named}. There is no kernel for it on "
            "WebGPU, so that the host computes it with NumPy, which a page has not. Leave it out "
            "of the model and compute it in JavaScript, or run the model with rlx."
        )


def routine_json(routine: Routine) -> Json:
    return {
        "numInputs": routine.num_inputs,
        "numParams": routine.num_params,
        "bound": list(routine.bound),
        "frame": _dims(routine.frame),
        "prologueFrame": _dims(routine.prologue_frame),
        "prologue": list(_parts(f"{routine.name} prologue", routine.prologue)),
        "steps": list(_parts(routine.name, routine.steps)),
        "outputs": _dims(routine.outputs),
    }


def is_straight(routine: Routine) -> bool:
    """Does the device run it all by itself?"""
    return all(isinstance(p, Segment) for p in parts_of(routine.steps))


def _parts(name: str, steps: Sequence[AnyStep]) -> Iterator[Json]:
    for part in parts_of(steps):
        yield _part(name, part)


def _part(name: str, part: Part) -> Json:
    match part:
        case Segment(number, steps):
            made = list(map(_enqueued, steps))
            return {"kind": "segment", "id": f"{name} {number}", "steps": made}
        case SizesStep(names):
            return {"kind": "sizes", "names": list(names)}
        case CallStep(body):
            return {"kind": "call", "bodies": [body], **_values(part)}
        case BranchStep():
            how = {"condition": _place(part.condition), "bodies": list(part.bodies)}
            found = list(map(_found, part.found))
            return {"kind": "branch", **how, **_values(part), "found": found}
        case WhileStep():
            return _while(part)
        case ScanStep():
            return _scan(part)
        case HostStep():
            raise AssertionError(part)


def _while(step: WhileStep) -> Json:
    return {
        "kind": "while",
        "bodies": [step.condition, step.body],
        "limit": step.limit,
        "numCarries": step.num_carries,
        **_values(step),
        "sizes": _dims(step.sizes),
        "rowSizes": _dims(step.row_sizes),
        "rows": step.rows,
        "first": _found(step.first),
        "next": _found(step.next),
    }


def _scan(step: ScanStep) -> Json:
    return {
        "kind": "scan",
        "bodies": [step.body],
        "length": dim_json(step.length),
        "numCarries": step.num_carries,
        "numBcasts": step.num_bcasts,
        "isReversed": step.is_reversed,
        **_values(step),
        "sizes": _dims(step.sizes),
        "sliceSizes": _dims(step.slice_sizes),
        "rowSizes": _dims(step.row_sizes),
    }


def _enqueued(step: Enqueued) -> Json:
    match step:
        case LaunchStep():
            return _launch(step)
        case CopyStep(to, source, size):
            return {"to": _place(to), "source": _place(source), "size": dim_json(size)}
        case ChoiceStep(buckets, alternatives):
            return {
                "sizes": _dims(buckets.sizes),
                "edges": list(map(list, buckets.edges)),
                "table": list(buckets.table),
                "alternatives": [list(map(_launch, a)) for a in alternatives],
            }


def _launch(step: LaunchStep) -> Json:
    assert len(step.spans) == len(step.places), "spans are not in files"
    return {
        "label": step.label,
        "code": step.code,
        "places": list(map(_place, step.places)),
        "spans": list(map(_span, step.spans)),
    }


def _span(span: Span) -> list[Any]:
    """The first byte that a kernel may touch, the end of them, and how many elements there are,
    where there may be none."""
    layout, size = span.layout, span.itemsize
    low = high = layout.offset * size
    for dim, stride in zip(layout.dims, layout.strides):
        last = (dim - 1) * stride * size
        low, high = low + dim_min(0, last), high + dim_max(0, last)
    ends = [dim_json(low), dim_json(high + size)]
    is_full = all(provably_le(1, d) for d in layout.dims)
    return ends if is_full else [*ends, dim_json(product(layout.dims))]


def _place(place: Place) -> list[Any]:
    return [place.space, dim_json(place.offset), place.index]


def _values(step: CallStep | BranchStep | WhileStep | ScanStep) -> Json:
    return {
        "operands": list(map(_place, step.operands)),
        "results": list(map(_place, step.results)),
    }


def _found(found: Found) -> list[Any]:
    return [[name, dim_json(dim)] for name, dim in found]


def _dims(dims: Iterable[DimLike]) -> list[Any]:
    return list(map(dim_json, dims))
