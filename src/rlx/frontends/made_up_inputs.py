"""Inputs for a model where a caller gives none, or not all: random, and such that they fit.

They fit if the model can be read for them and, where data may make it fail, runs on NumPy: so they
are the same whatever is done with the model, and for every target.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace

from rlx.core.errors import Error, OutOfMemoryError
from rlx.core.shape import Shape
from rlx.frontends.onnx.model import Model
from rlx.frontends.onnx.switches import switches
from rlx.ir.interpret import evaluate, infer_binding
from rlx.ir.mir import Node
from rlx.ops.op import Array
from rlx.passes.bodies import nodes_within
from rlx.runtime.executable import Executable
from rlx.runtime.fitting_inputs import MadeUp, Trial, Wanted, fitting_inputs

INDEXED = frozenset({"gather", "embedding", "take_along_axis", "scatter", "scatter_add"})
"""Ops that fail where an index of theirs is out of range."""


def made_up_inputs(model: Model, wanted: Wanted | None = None) -> MadeUp:
    """Inputs of a model from a file. Where the model is another for other inputs, it can be read
    for these: `model.specialised(list(made.arrays.values()))`."""
    asked = replace(wanted or Wanted(), hints=_hints(model))
    return fitting_inputs(inputs_of(model), asked, _refusing(lambda a: _require_runs(model, a)))


def inputs_of(model: Model) -> Mapping[str, Shape | None]:
    """The inputs as what is compiled of the model has them."""
    if model.is_static or not model.is_plain:
        return model.declared
    return {n.attrs["name"]: n.shape for n in model.graph.inputs}


def inputs_for(exe: Executable, wanted: Wanted | None = None) -> MadeUp:
    """Inputs of what was compiled. Where it is one program for all of them, the first choice is
    good, but for data: `ran` looks further."""
    model = _model_of(exe)
    if model is not None and model.is_static:
        return made_up_inputs(model, wanted)
    return fitting_inputs(exe.inputs, replace(wanted or Wanted(), hints=_hints(model)))


def ran(exe: Executable, wanted: Wanted) -> tuple[MadeUp, dict[str, Array]]:
    """A call on inputs that fit, and what it gives by name; what a model checks while it runs, such
    as indices, counts, too."""
    made = inputs_for(exe, wanted)
    try:
        return made, exe.run(made.arrays)
    except Error:
        asked = replace(wanted, hints=_hints(_model_of(exe)))
        made = fitting_inputs(exe.inputs, asked, _refusing(lambda a: exe.run(a)))
        return made, exe.run(made.arrays)


def _model_of(exe: Executable) -> Model | None:
    """The file that it is of, if it is."""
    return exe.source if isinstance(exe.source, Model) else None


def _hints(model: Model | None) -> dict[str, list[float]]:
    return {} if model is None else switches(model.reader)


def _require_runs(model: Model, arrays: Mapping[str, Array]) -> None:
    """An error where the model cannot be read for these inputs, or fails on their data."""
    read = model.specialised(list(arrays.values()))
    if not read.is_plain:
        return
    given = {n.attrs["name"]: arrays[n.attrs["name"]] for n in read.graph.inputs}
    infer_binding(read.graph.inputs, given)
    if any(map(_may_fail, nodes_within(read.graph))):
        with suppress(OutOfMemoryError):  # on NumPy: a target may have the memory
            evaluate(read.graph, {**read.params, **given})


def _may_fail(node: Node) -> bool:
    return node.op in INDEXED and node.inputs[1].op != "constant"


def _refusing(call: Callable[[Mapping[str, Array]], object]) -> Trial:
    def refused(arrays: Mapping[str, Array]) -> Error | None:
        try:
            call(arrays)
        except Error as error:
            return error
        return None

    return refused
