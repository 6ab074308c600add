"""A model from PyTorch: its graph and weights. `rlx.compile` takes it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from rlx.core.dim import Dim, DimLike
from rlx.core.errors import GraphError, UnsupportedError
from rlx.core.public_calls import public, public_class
from rlx.core.shape import Shape
from rlx.cost.decision import Decision
from rlx.frontends.named_dims import NamedDims
from rlx.frontends.torch.aliasing import Tensor as Held
from rlx.frontends.torch.aliasing import owner_of, written_bases
from rlx.frontends.torch.autocast import Region, with_casts
from rlx.frontends.torch.dtypes import array_of, dtype_of, require_dense
from rlx.frontends.torch.eager import EagerGraph, Place
from rlx.frontends.torch.guards import Guards
from rlx.frontends.torch.importer import Importer, attributes_of
from rlx.frontends.torch.namespaces import pytree, torch
from rlx.frontends.torch.node_call import Unused
from rlx.frontends.torch.reading import Reading
from rlx.frontends.torch.scalars import scalar_node
from rlx.frontends.torch.signature import (
    Argument,
    Output,
    RandomState,
    Result,
    Signature,
    Source,
    State,
    Write,
    is_expanded,
    stride_order,
    views_of,
)
from rlx.frontends.torch.sizes import Sizes
from rlx.ir.bundle import Bundle
from rlx.ir.mir import Graph, Node
from rlx.ops.op import Array

if TYPE_CHECKING:
    from rlx.frontends.torch.program import TorchProgram
    from rlx.passes.options import FusionOptions
    from rlx.runtime.executable import Executable
    from rlx.runtime.session import Session

_LIFTED = "lifted_tensor_"
"""How torch.export calls tensors that the code made, or had from elsewhere than its module."""
MAX_CONSTANT = 64
"""Elements of a tensor of the model that are part of its graph rather than a weight."""


@public_class
class TorchModel(Bundle):
    """A graph that was exported, and weights on torch's own memory."""

    def __init__(
        self, graph: Graph, weights: Mapping[str, Any], state: Mapping[str, Any],
        constants: Mapping[str, Any], signature: Signature,
        decomposed: Mapping[str, tuple[str, ...]], eager: EagerGraph,
        reading: Reading | None = None, why_static: str = "",
    ) -> None:  # fmt: skip
        self.name, self._graph = graph.name, graph
        self.weights = weights
        """Name → tensor, for what the graph has as params."""
        self.state = state
        """Name → tensor, for what calls change."""
        self.constants = constants
        """Name → tensor, for what the graph has as constants."""
        self.signature = signature
        self.decomposed = decomposed
        """Ops that torch decomposed, and what they became."""
        self.eager = eager
        """What it was imported from."""
        self.reading = reading
        """How it is read for sizes that its graph is not for."""
        self.why_static = why_static
        """Why its graph is for the sizes alone that torch traced with, if it is."""

    @property
    def graph(self) -> Graph:
        """The imported graph."""
        return self._graph

    @property
    def params(self) -> Mapping[str, Array]:
        """The weights by name."""
        return {name: weight_array(t) for name, t in self.weights.items()}

    @property
    def inputs(self) -> tuple[str, ...]:
        """The names of its inputs."""
        return tuple(n.attrs["name"] for n in self._graph.inputs)

    @property
    def outputs(self) -> tuple[str, ...]:
        """The names of its outputs."""
        return tuple(self._graph.output_names)

    @property
    def digest(self) -> str:
        """Its name, and a hash of its graph."""
        return f"{self._graph.name} {self._graph.digest()}"

    @property
    def is_of_rlx(self) -> bool:
        """Are all of its ops those of rlx, so that it may be cached?"""
        from rlx.runtime.request_keys import comes_with_rlx

        return comes_with_rlx(self._graph)

    @property
    def decisions(self) -> tuple[Decision, ...]:
        """Why one program does not serve all sizes, where torch left some open."""
        if not self.why_static:
            return ()
        return (
            Decision(
                "static shapes", "compile_per_shapes", self.inputs, True, self.why_static,
                is_reversible=False, kind="import",
            ),
        )  # fmt: skip

    def compiled(
        self, session: Session, options: FusionOptions | None, params: Mapping[str, Any] | None
    ) -> TorchProgram:
        """The program on tensors that a session makes of it."""
        from rlx.frontends.torch.program import TorchProgram
        from rlx.frontends.torch.variants import OtherSizes

        if options is not None:
            options.require_all_outputs(self.name, "a module returns all of its results")
        model = self.for_session(session)
        try:
            made = model.executable(session, options, params)
        except (GraphError, UnsupportedError) as error:  # no plan for all sizes
            if self.reading is None or not self.graph.has_dynamic_dims:
                raise
            return self.reading.at_traced_sizes(error).compiled(session, options, params)
        others = None if self.reading is None else OtherSizes(model, session, options, params)
        return TorchProgram(model, made, frozenset(params or ()), others)

    def executable(
        self, session: Session, options: FusionOptions | None, params: Mapping[str, Any] | None
    ) -> Executable:
        """The program of its graph."""
        return session.executable(
            self, self.params, options=options, params=params, before=self.decisions
        )

    def with_states(self, graph: Graph, signature: Signature) -> TorchModel:
        """The same with states in the graph."""
        held = self.weights, self.state, self.constants
        how = self.decomposed, self.eager, self.reading, self.why_static
        return TorchModel(graph, *held, signature, *how)

    def readable(self, reading: Reading, why_static: str = "") -> TorchModel:
        """The same, which can be read for other sizes."""
        held = self.weights, self.state, self.constants
        how = self.signature, self.decomposed, self.eager, reading, why_static
        return TorchModel(self._graph, *held, *how)

    def for_session(self, session: Session) -> TorchModel:
        """The model with what it writes as states, where the session's target writes the host's
        memory in place."""
        from rlx.frontends.torch.in_place import in_place

        is_host = session.backend.updates_host_arrays
        return in_place(self) if is_host and session.target.holds_state else self

    def __repr__(self) -> str:
        given, made = ", ".join(self.inputs), ", ".join(self.outputs)
        return f"<TorchModel {self.name!r} ({given}) -> ({made})>"


def weight_array(tensor: Any) -> Array:
    """The memory of a weight, which is contiguous in all but views."""
    return np.ascontiguousarray(array_of(tensor)).reshape(tuple(tensor.shape))


class Builder:
    """Reads an FX graph whose placeholders are arguments, weights and state into a model."""

    def __init__(
        self, name: str, ranges: Mapping[Any, Any], names: Mapping[str, str],
        known: NamedDims | None = None,
    ) -> None:  # fmt: skip
        self.graph = Graph(name)
        self.graph.traces_lines = False
        self.importer = Importer(self.graph, Sizes(ranges, names, known))
        self.env: dict[Any, Any] = {}
        self.sources: dict[Any, Source] = {}
        self.weights: dict[str, Any] = {}
        self.state: dict[str, Any] = {}
        self.constants: dict[str, Any] = {}

    def argument(self, node: Any, place: int, name: str, *, as_stored: bool = False) -> None:
        """A tensor of each call, or a value that is the same in all. `as_stored` makes an input
        with its axes in the order that they have in memory, such as NHWC."""
        fake = node.meta.get("val")
        if isinstance(fake, torch.Tensor):
            require_dense(fake, f"input {name!r}")
            order = stride_order(fake) if as_stored else None
            self.env[node] = self._input(name, self._shape(fake), order)
            self.sources[node] = Argument(name, place, order)
        else:
            self.env[node] = fake

    def require(self, guards: Guards, arguments: Sequence[Any]) -> None:
        """Refuse calls for which the guards of the program do not hold."""
        sizes = self.importer.sizes

        def dims(place: int) -> Sequence[DimLike]:
            fake = arguments[place].meta.get("val")
            return sizes.dims(fake) if isinstance(fake, torch.Tensor) else (sizes.of(fake),)

        for size, why in guards.requirements(dims):
            self.graph.require(size, why)

    def _input(self, name: str, shape: Shape, order: tuple[int, ...] | None) -> Node:
        from rlx import ops

        if order is None:
            return self.graph.input(name, shape)
        stored = Shape(tuple(shape.dims[a] for a in order), shape.dtype)
        return ops.transpose(self.graph.input(name, stored), perm=tuple(np.argsort(order).tolist()))

    def weight(
        self, node: Any, name: str, tensor: Any, *, is_written: bool, is_constant: bool
    ) -> None:
        """A tensor of the model: a param, or an input where calls change it. A small one that the
        module has no name for is a constant."""
        require_dense(tensor, name)
        if is_written:
            self.env[node] = self.graph.input(name, self._shape(tensor))
            self.sources[node], self.state[name] = State(name, name), tensor
        elif is_constant and tensor.numel() <= MAX_CONSTANT and not tensor.requires_grad:
            self.env[node] = self.graph.constant(weight_array(tensor).copy())
            self.constants[name] = tensor
        else:
            self.param(node, name, tensor)

    def param(self, node: Any, name: str, tensor: Any) -> None:
        """A weight, on the tensor's own memory."""
        require_dense(tensor, name)
        self.env[node] = self.graph.param(name, self._shape(tensor))
        self.weights[name] = tensor

    def _shape(self, tensor: Any) -> Shape:
        return Shape(self.importer.sizes.dims(tensor), dtype_of(tensor.dtype))

    def model(
        self, eager: EagerGraph, attribute: Callable[[str], Any], names: Sequence[str],
        in_spec: Any, out_spec: Any, num_arguments: int,
    ) -> TorchModel:  # fmt: skip
        """The model of an FX graph whose placeholders were stated."""
        graph = eager.module.graph
        made = self.importer.run(graph, self.env, attribute)
        results = self._results(graph, _flat(made))
        outputs: dict[Node, str] = {}
        owners = shared_owners(node for _, node in results)
        shown = {o: self._shared(o, outputs) for o in owners if o not in self.sources}
        flat = [self._result(r, outputs, n, shown) for r, n in zip(results, names, strict=True)]
        flat = _with_copies(flat, [node for _, node in results])
        writes = self._writes(outputs)
        if not outputs:
            raise UnsupportedError(
                "no tensor comes out of the model, so there is nothing to run. Return one"
            )
        self.graph.set_outputs({name: node for node, name in outputs.items()})
        signature = Signature(self._inputs(), tuple(flat), writes, in_spec, out_spec, num_arguments)
        decomposed = self.importer.decomposed
        held = self.weights, self.state, self.constants
        return TorchModel(self.graph, *held, signature, decomposed, eager)

    def _results(self, graph: Any, values: Sequence[Any]) -> list[tuple[Any, Any]]:
        """Each flat result and the FX node that it is."""
        (last,) = [n for n in graph.nodes if n.op == "output"]
        nodes = pytree.tree_leaves(
            last.args[0], is_leaf=lambda v: isinstance(v, torch.fx.Node) or v is None
        )
        return list(zip(values, nodes, strict=True))

    def _shared(self, owner: Any, outputs: dict[Node, str]) -> Output:
        """The output that several results show."""
        held = self.env[owner]
        value = held.read() if isinstance(held, Held) else held
        stored, perm = _stored(value, owner.meta["val"])
        return Output(_placed(outputs, stored, owner.name), perm)

    def _result(
        self, found: tuple[Any, Any], outputs: dict[Node, str], name: str,
        shown: Mapping[Any, Output],
    ) -> Result:  # fmt: skip
        value, node = found
        if isinstance(value, Dim):
            value = scalar_node(self.graph, value)
        if isinstance(value, Unused):
            raise UnsupportedError(
                f"result {name!r} is {value.what} of {value.op}, which rlx does not compute"
            )
        if not isinstance(value, Node):
            return Result(None, constant=value)
        fake = node.meta.get("val")
        if not isinstance(fake, torch.Tensor):
            return Result(_placed(outputs, value, name), constant=_scalar)
        owner = owner_of(node)
        source = shown.get(owner) or self.sources.get(owner)
        views = views_of(node, owner, source, self.importer.sizes.of)
        if isinstance(source, Output):
            return Result(source.place, source.perm, views=views)
        stored, perm = _stored(value, fake)
        return Result(_placed(outputs, stored, name), perm, views=views)

    def _writes(self, outputs: dict[Node, str]) -> tuple[Write, ...]:
        made: list[Write] = []
        for node, source in self.sources.items():
            held = self.env[node]
            if isinstance(held, Held) and held.storage.version:
                name = f"{source.name}.written"
                made.append(Write(source, _placed(outputs, held.read(), name)))
        return tuple(made)

    def _inputs(self) -> tuple[Source, ...]:
        known = {s.name: s for s in self.sources.values()}
        names = (n.attrs["name"] for n in self.graph.inputs)
        return tuple(known.get(n) or RandomState(n) for n in names)


_scalar = "a Python number"
"""Marks results that torch gives as Python numbers."""


def _stored(value: Node, fake: Any) -> tuple[Node, tuple[int, ...] | None]:
    """A value in the order of axes that torch has it in memory."""
    from rlx import ops

    perm = stride_order(fake)
    return (value, None) if perm is None else (ops.transpose(value, perm=perm), perm)


def shared_owners(nodes: Iterable[Any]) -> set[Any]:
    """Tensors in whose memory several results are, or one that shows an element more than once."""
    found: dict[Any, set[Any]] = {}
    expanded: set[Any] = set()
    for node in nodes:
        if isinstance(node, torch.fx.Node) and isinstance(node.meta.get("val"), torch.Tensor):
            owner = owner_of(node)
            found.setdefault(owner, set()).add(node)
            expanded |= {owner} if node is not owner and is_expanded(node.meta["val"]) else set()
    return expanded | {owner for owner, shown in found.items() if len(shown) > 1}


def _with_copies(results: Sequence[Result], nodes: Sequence[Any]) -> list[Result]:
    """Results that torch has in memory of their own, where equal values are one output."""
    owners: dict[int, Any] = {}
    made: list[Result] = []
    for result, node in zip(results, nodes, strict=True):
        is_own = result.output is not None and result.constant is None and _has_memory(result)
        owner = owner_of(node) if is_own else None
        first = (
            owners.setdefault(result.output, owner)
            if is_own and result.output is not None
            else owner
        )
        made.append(replace(result, is_copy=True) if first is not owner else result)
    return made


def _has_memory(result: Result) -> bool:
    return result.views is None or isinstance(result.views.source, Output)


def _placed(outputs: dict[Node, str], node: Node, name: str) -> int:
    """The place of an output; equal nodes are one."""
    if node not in outputs:
        taken = set(outputs.values())
        called, number = name, 2
        while called in taken:
            called, number = f"{name}.{number}", number + 1
        outputs[node] = called
    return list(outputs).index(node)


def _flat(made: Any) -> list[Any]:
    return pytree.tree_leaves(made, is_leaf=lambda v: isinstance(v, Node | Dim) or v is None)


@public
def from_exported(
    program: Any, name: str = "", names: Mapping[str, str] | None = None
) -> TorchModel:
    """The model of a torch.export.ExportedProgram."""
    return imported_program(program, name, names or {}, Region(None, False))


def imported_program(
    program: Any, name: str, names: Mapping[str, str], ambient: Region,
    guards: Sequence[str] | None = None,
    retrace: Callable[[Sequence[Any]], TorchModel] | None = None,
) -> TorchModel:  # fmt: skip
    """The model of an ExportedProgram that was traced in a region of automatic mixed precision.
    `guards` are those of a program that was read without them; `retrace` gives the model for a call
    for which they do not hold."""
    _require_plain(program.graph_signature)
    module = with_casts(program.graph_module, ambient)
    operands = _operands(program)
    ranges = program.range_constraints

    def read(module: Any, known: NamedDims, guards: Guards) -> TorchModel:
        build = Builder(name or "model", ranges, names, known)
        return _imported(program, build, EagerGraph(module, operands), guards)

    eager = EagerGraph(module, operands)
    return Reading(eager, ranges, names, Guards.of(program, guards), read, retrace).model()


def _operands(program: Any) -> tuple[Any, ...]:
    """What the placeholders of a program are: arguments by place, or tensors."""
    held = {**program.state_dict, **program.constants}
    found: list[Any] = []
    for spec in program.graph_signature.input_specs:
        if spec.kind.name == "USER_INPUT":
            found.append(Place(sum(isinstance(o, Place) for o in found)))
        elif isinstance(held.get(spec.target), torch.Tensor):
            found.append(held[spec.target])
        else:
            kind = type(held.get(spec.target)).__name__
            raise UnsupportedError(f"{spec.target!r} of the model is a {kind}, not a tensor")
    return tuple(found)


def _imported(program: Any, build: Builder, eager: EagerGraph, guards: Guards) -> TorchModel:
    graph, signature = eager.module.graph, program.graph_signature
    written = written_bases(graph)
    placeholders = [n for n in graph.nodes if n.op == "placeholder"]
    for spec, node, operand in zip(
        signature.input_specs, placeholders, eager.operands, strict=True
    ):
        if isinstance(operand, Place):
            build.argument(node, operand.number, spec.arg.name)
        else:
            build.weight(
                node, spec.target, operand, is_written=node in written,
                is_constant=spec.target.startswith(_LIFTED),
            )  # fmt: skip
    arguments = [n for n, o in zip(placeholders, eager.operands) if isinstance(o, Place)]
    build.require(guards, arguments)
    outputs = [
        getattr(s.arg, "name", "") or f"output{i}" for i, s in enumerate(signature.output_specs)
    ]
    return build.model(
        eager, attributes_of(eager.module), outputs, program.call_spec.in_spec,
        program.call_spec.out_spec, len(arguments),
    )  # fmt: skip


def _require_plain(signature: Any) -> None:
    """Programs that were functionalised state what they write as outputs."""
    kinds = {s.kind.name for s in signature.output_specs}
    if kinds - {"USER_OUTPUT"}:
        raise UnsupportedError(
            "the program was run through run_decompositions(), which makes what it writes "
            f"outputs ({', '.join(sorted(kinds - {'USER_OUTPUT'}))}). Give it as export made it"
        )
