"""Control flow, and graphs inside graphs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rlx import ops
from rlx.core.dim import Dim
from rlx.core.dtype import DType
from rlx.frontends.torch.handlers import handles
from rlx.frontends.torch.node_call import Call
from rlx.ir.mir import Node
from rlx.ops import op as table


def _operands(values: Sequence[Any]) -> list[Node]:
    return [v for v in values if isinstance(v, Node)]


@handles("cond")
def cond(call: Call, pred: Any, true_fn: Any, false_fn: Any, operands: Any = ()) -> Any:
    """Only the side that is taken runs; a condition that is known is no branch."""
    if isinstance(pred, bool):
        return list(call.importer.inlined(true_fn if pred else false_fn, operands))
    importer = call.importer
    then = importer.body(true_fn, "then", operands)
    other = importer.body(false_fn, "else", operands)
    condition = ops.reshape(call.node(pred, DType.BOOL), dims=())
    made = table.lookup("if")(condition, *_operands(operands), then=then, else_=other)
    return list(made) if isinstance(made, tuple) else [made]


@handles("while_loop")
def while_loop(call: Call, cond_fn: Any, body_fn: Any, carried: Any, constants: Any = ()) -> Any:
    """What the loop only reads is carried unchanged."""
    given = [call.node(v) if not isinstance(v, Node) else v for v in carried]
    fixed = [call.node(v) if isinstance(v, Dim | int | float) else v for v in constants]
    values = [*given, *fixed]
    importer = call.importer
    condition = importer.body(cond_fn, "cond", values)
    body = importer.body(body_fn, "body", values)
    _pass_on(body, len(given))
    _as_scalar(condition)
    made = table.lookup("while")(*values, cond=condition, body=body)
    return list(made)[: len(given)]


def _pass_on(body: Any, count: int) -> None:
    """Values after the first are given on as they are."""
    body.set_outputs([*body.outputs, *body.inputs[count:]])


def _as_scalar(condition: Any) -> None:
    (flag,) = condition.outputs
    condition.set_outputs([ops.reshape(flag, dims=())])


@handles("scan")
def scan(call: Call, combine_fn: Any, init: Any, xs: Any, additional: Any = ()) -> Any:
    """Carries, then stacked results; slices along the first axis."""
    carries, sliced, whole = list(init), list(xs), list(additional)
    slices = [_one(x) for x in sliced]
    body = call.importer.body(combine_fn, "body", [*carries, *slices, *whole])
    ordered = _reordered(body, len(carries), len(sliced))
    made = table.lookup("scan")(
        *carries, *whole, *sliced, body=ordered, length=sliced[0].shape.dims[0],
        num_carries=len(carries), num_bcasts=len(whole),
    )  # fmt: skip
    return list(made)


def _one(x: Node) -> Node:
    """The first slice, for its shape."""
    return ops.squeeze(ops.narrow(x, axis=0, start=0, length=1), axes=(0,))


def _reordered(body: Any, carries: int, sliced: int) -> Any:
    """Torch's body takes carries, slices, then what is whole; the table's what is whole before."""
    from rlx.ir.mir import Graph

    names = [n.attrs["name"] for n in body.inputs]
    order = [*names[:carries], *names[carries + sliced :], *names[carries : carries + sliced]]
    shapes = {n.attrs["name"]: n.shape for n in body.inputs}
    made = Graph(body.name)
    made.traces_lines = False
    inputs = {n: made.input(n, shapes[n]) for n in order}
    made.set_outputs(made.inline(body, [inputs[n] for n in names]))
    return made


@handles("map_impl", "map")
def map_(call: Call, function: Any, xs: Any, constants: Any = ()) -> Any:
    """A scan without carries."""
    sliced, whole = list(xs), list(constants)
    body = call.importer.body(function, "body", [*map(_one, sliced), *whole])
    ordered = _reordered(body, 0, len(sliced))
    made = table.lookup("scan")(
        *whole, *sliced, body=ordered, length=sliced[0].shape.dims[0], num_carries=0,
        num_bcasts=len(whole),
    )  # fmt: skip
    return list(made)


@handles("wrap_with_set_grad_enabled", "wrap_with_autocast", "invoke_subgraph",
         "hints_wrapper", "wrap", "tag_activation_checkpoint")  # fmt: skip
def inlined(call: Call, *given: Any) -> Any:
    """Graphs inside that change no values."""
    at = next(i for i, v in enumerate(given) if hasattr(v, "graph") and hasattr(v, "code"))
    if call.op == "wrap_with_autocast":
        call.refuse("automatic mixed precision in a branch or loop")
    rest = list(given[at + 1 :])
    if call.op == "invoke_subgraph":
        rest = rest[1:]
    if call.op == "hints_wrapper":
        rest = list(rest[0])
    return list(call.importer.inlined(given[at], rest))


@handles("with_effects")
def with_effects(call: Call, token: Any, op: Any, *args: Any) -> Any:
    call.refuse("an op whose effects are ordered by tokens")
