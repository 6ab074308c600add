"""The interface of a compiled model: names, shapes and dtypes of inputs and outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from rlx.core.errors import Error
from rlx.core.requirements import Requirement
from rlx.core.shape import Shape
from rlx.ir.interpret import checked_array, infer_binding
from rlx.ir.lir import LirModule, Phase
from rlx.ir.mir import Graph, Node
from rlx.ir.size_requirements import size_requirements
from rlx.ir.states import chains_of
from rlx.ops.op import Array


@dataclass(frozen=True, slots=True)
class Leaf:
    """An input, param or state without its graph: name, shape and dtype."""

    op: str
    name: str
    shape: Shape
    init: float = 0.0
    """What every element of a state is at first."""
    update: str = ""
    """How calls change a state: `append` writes rows, `assign` all of it; not at all if empty."""

    @property
    def attrs(self) -> Mapping[str, Any]:
        return {"name": self.name, "shape": self.shape}


@dataclass(frozen=True, slots=True)
class Interface:
    """Inputs, params and outputs, in the user's order."""

    name: str
    inputs: tuple[Leaf, ...]
    """What a call is given: the caller's inputs, then the states of a session, which are written
    in place."""
    params: tuple[Leaf, ...]
    outputs: tuple[tuple[str, Shape], ...]
    late: tuple[int, ...] = ()
    """The outputs that the Epilogue makes, by number: those of `finish`."""
    held_inputs: tuple[int, ...] = ()
    """The inputs that the Epilogue reads, by number."""
    held_outputs: tuple[int, ...] = ()
    """The outputs of `step` that the Epilogue reads, by number."""
    required: tuple[Requirement, ...] = ()
    """What sizes must be, beside in their ranges."""

    @classmethod
    def planned(cls, lir: LirModule) -> Interface:
        """What a plan takes and gives, and when."""
        plan, graph = lir.plan, lir.mir.graph
        late = plan.io.late(graph.output_names, plan.phases)
        kernels = [n for n in plan.schedule if plan.phases[n] is Phase.EPILOGUE]
        read = {plan.root(i) for n in kernels for i in n.inputs}
        read |= {plan.root(graph.outputs[i]) for i in late}
        inputs = [i for i, n in enumerate(graph.inputs) if n in read]
        outputs = [i for i, o in enumerate(graph.outputs) if plan.root(o) in read]
        early = [i for i in outputs if i not in late]
        return replace(
            cls.of(graph),
            late=tuple(late),
            held_inputs=tuple(inputs),
            held_outputs=tuple(early),
            required=size_requirements(graph),
        )

    @classmethod
    def of(cls, graph: Graph) -> Interface:
        outputs = tuple((n, o.shape) for n, o in zip(graph.output_names, graph.outputs))
        updates = {c.state: c.update for c in chains_of(graph.order())}
        inputs, params = (
            tuple(_leaf(n, updates.get(n, "")) for n in leaves)
            for leaves in (graph.given, graph.params)
        )
        return cls(graph.name, inputs, params, outputs)

    @property
    def states(self) -> tuple[Leaf, ...]:
        """What a session keeps."""
        return tuple(n for n in self.inputs if n.op == "state")

    def names(self, *, is_late: bool) -> tuple[str, ...]:
        """The outputs of `finish`, or those of `step`, in order."""
        return tuple(n for i, (n, _) in enumerate(self.outputs) if (i in self.late) is is_late)

    def held(self, inputs: Sequence[Array], *, everything: bool = False) -> list[Array]:
        """The inputs of a step, of which those that the Epilogue reads are copies: what the caller
        writes between the two does not count. `everything` is copied where the Epilogue may have
        to go back to the inputs."""
        read = range(len(inputs)) if everything else self.held_inputs
        return [np.array(a) if i in read else a for i, a in enumerate(inputs)]

    def early(self, made: Sequence[Array]) -> list[Array | None]:
        """What a step gives of all outputs."""
        given = [np.array(m) if i in self.held_outputs else m for i, m in enumerate(made)]
        return [None if i in self.late else m for i, m in enumerate(given)]

    def bind(self, params: Mapping[str, Array], inputs: Sequence[Array]) -> dict[str, int]:
        """The sizes of named dims, read off the arrays; an error names the one that is wrong."""
        named = {n.name: a for n, a in zip(self.inputs, inputs, strict=True)}
        sized = {n.name: params[n.name] for n in self.sized_params}
        sizes = infer_binding([*self.inputs, *self.sized_params], {**sized, **named})
        for each in self.required:
            each.check(sizes)
        return sizes

    @property
    def sized_params(self) -> list[Leaf]:
        """The params whose dims are named: those of others are known without them."""
        return [n for n in self.params if n.shape.dynamic_symbols]

    def checked(self, inputs: Sequence[Array], sizes: Mapping[str, int]) -> list[Array]:
        """The inputs, each of exactly the declared dtype and dims."""
        return [checked_array(n, a, sizes) for n, a in zip(self.inputs, inputs, strict=True)]

    def check_outs(
        self, outs: Sequence[Array | None], sizes: Mapping[str, int], *, is_measured: bool
    ) -> None:
        """All before anything is written; where a size is measured, once it is known."""
        for (name, shape), out in zip(self.outputs, outs):
            if out is not None and shape.is_measured == is_measured:
                check_out(out, shape.bind(sizes), name)

    def check_found(self, outs: Sequence[Array | None], made: Sequence[Array]) -> None:
        """Outs whose sizes were measured, against what was found."""
        for (name, shape), out, found in zip(self.outputs, outs, made):
            if out is not None and shape.is_measured:
                check_out(out, Shape(found.shape, shape.dtype), name)

    def check_no_overlap(self, outs: Sequence[Array | None], inputs: Sequence[Array]) -> None:
        """Outputs are written while inputs are still read, so none may share memory."""
        names = [n for n, _ in self.outputs]
        given = [(f"out for {n!r}", o) for n, o in zip(names, outs) if o is not None]
        others = [(f"input {n.name!r}", a) for n, a in zip(self.inputs, inputs)]
        for i, (what, out) in enumerate(given):
            for other, array in (*given[:i], *others):
                if np.may_share_memory(out, array):
                    raise Error(f"{what} shares memory with {other}. Give an array of its own.")


def _leaf(node: Node, update: str) -> Leaf:
    return Leaf(node.op, node.attrs["name"], node.shape, node.attrs.get("init", 0.0), update)


def check_out(out: Array, shape: Shape, name: str) -> None:
    """The error of an array that a result cannot be written into."""
    if out.dtype != shape.dtype.numpy or not out.dtype.isnative or out.shape != shape.dims:
        raise Error(
            f"out for {name!r} is {out.dtype}{list(out.shape)}, the result is {shape}. "
            "Give an array of that shape and dtype."
        )
    if not out.flags.writeable:
        raise Error(f"out for {name!r} is read-only. Give an array that can be written.")
    if not out.flags.c_contiguous:
        raise Error(f"out for {name!r} is not contiguous. Give one that is: np.empty(...).")
