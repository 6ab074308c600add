"""Ops that torch runs on the host, in the middle of a program: for ops of other libraries that have
no meaning in the op table. Each is stated in the log."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from typing import Any

from rlx.core.errors import Error
from rlx.core.public_calls import public
from rlx.core.shape import Shape
from rlx.frontends.torch.aliasing import returns_written, written_arguments
from rlx.frontends.torch.dtypes import array_of, dtype_of, tensor_of
from rlx.frontends.torch.handlers import handler
from rlx.frontends.torch.namespaces import torch
from rlx.frontends.torch.node_call import Call
from rlx.ir.mir import Node
from rlx.ops.custom_ops import custom_op
from rlx.ops.op import Array

LOG = logging.getLogger("rlx")
_RUNS = "torch::host"


@public
def host_op(name: str) -> None:
    """Let torch run an op, `rlx.torch.host_op("my::op")`, where rlx has no handler for it. Programs
    wait for it, and copy its operands and results; what surrounds it is compiled in parts. Tensors
    that the op changes are changed."""

    @handler(name)
    def run_by_torch(call: Call, *args: Any) -> Any:
        LOG.warning("%s has no handler and is run by torch on the host", call.target)
        return _stored(call, _nodes(call))


def _stored(call: Call, made: list[Node]) -> Any:
    """The op's own results; the others are what became of tensors that it changes."""
    own, written = _results(call), _written(call)
    if returns_written(call.target) and len(written) == 1:
        return made[0]  # the importer stores it, as that of any in-place op
    for name, value in zip(written, made[len(own) :], strict=True):
        call.write(name, value)
    return made[: len(own)] if isinstance(call.value, tuple | list) else (made or [None])[0]


def _results(call: Call) -> list[Any]:
    """What the op gives, which is no tensor that it changes."""
    if call.value is None or returns_written(call.target):
        return []
    return list(call.value) if isinstance(call.value, tuple | list) else [call.value]


def _written(call: Call) -> list[str]:
    return [name for _, name in written_arguments(call.target) if call.tensors[name] is not None]


def _nodes(call: Call) -> list[Node]:
    """The results of a node that calls the op. Arguments are operands by number, or values in the
    options."""
    operands: list[Node] = []
    slots: dict[str, Any] = {}
    for name, value in call.args.items():
        if isinstance(value, Node):
            slots[name] = {"operand": len(operands)}
            operands.append(value)
        else:
            slots[name] = {"value": _plain(call, name, value)}
    written = _written(call)
    fakes = [*_results(call), *(call.fakes[name] for name in written)]
    results = [_result(call, f, operands) for f in fakes]
    target = f"{call.target._schema.name}.{call.overload or 'default'}"
    made = custom_op(_RUNS, _run, _shapes)(
        *operands, target=target, slots=slots, results=results, written=written
    )
    return list(made) if isinstance(made, tuple) else [made]


def _plain(call: Call, name: str, value: Any) -> Any:
    try:
        json.dumps(value)
    except TypeError:
        call.refuse(f"its argument {name} cannot be kept in a graph")
    return value


def _result(call: Call, fake: Any, operands: Sequence[Node]) -> dict[str, Any]:
    """The dtype and dims of a result: numbers, or the sizes of operands."""
    if not isinstance(fake, torch.Tensor):
        call.refuse("a result that is not a tensor")
    dims: list[Any] = []
    for dim in call.dims_of(fake):
        places = (
            [i, a] for i, o in enumerate(operands) for a, d in enumerate(o.shape.dims) if d == dim
        )
        found = dim if isinstance(dim, int) else next(places, None)
        call.require(found is not None, f"a size of its result, {dim}, is none of its operands'")
        dims.append(found)
    return {"dims": dims, "dtype": str(dtype_of(fake.dtype))}


def _shapes(*shapes: Shape, results: Any, **_: Any) -> Any:
    made = tuple(
        Shape([d if isinstance(d, int) else shapes[d[0]].dims[d[1]] for d in r["dims"]], r["dtype"])
        for r in results
    )
    return made[0] if len(made) == 1 else made


def _run(*arrays: Array, target: str, slots: Any, results: Any, written: Sequence[str]) -> Any:
    namespace, _, rest = target.partition("::")
    name, _, overload = rest.partition(".")
    try:
        function = getattr(getattr(getattr(torch.ops, namespace), name), overload)
    except AttributeError:
        raise Error(f"torch has no op {target}. Import the library that registers it.") from None
    tensors = [tensor_of(a.copy()) for a in arrays]
    given = {n: tensors[s["operand"]] if "operand" in s else s["value"] for n, s in slots.items()}
    with torch.no_grad():
        made = function(**given)
    own = len(results) - len(written)
    results_of_op = list(made) if isinstance(made, tuple | list) else [made]
    found = [*results_of_op[:own], *(given[name] for name in written)]
    out = tuple(array_of(t.contiguous()) for t in found)
    return out[0] if len(out) == 1 else out
