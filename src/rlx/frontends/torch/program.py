"""Compiled models from PyTorch: called as the module is, with tensors or with arrays."""

from __future__ import annotations

import contextlib
import logging
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rlx.core.dim import Dim
from rlx.core.errors import Error
from rlx.core.memory_digests import MemoryDigests
from rlx.core.public_calls import public_class
from rlx.core.shape import OutOfRange
from rlx.frontends.torch.dtypes import array_of, tensor_of
from rlx.frontends.torch.model import TorchModel, weight_array
from rlx.frontends.torch.namespaces import pytree, torch
from rlx.frontends.torch.native_call import inverse, native_call
from rlx.frontends.torch.signature import (
    Argument,
    Output,
    RandomState,
    Result,
    Source,
    State,
    Views,
)
from rlx.frontends.torch.watch import Watch
from rlx.frontends.torch.written import (
    Written,
    edges_of,
    is_folded,
    overlaps,
    reach,
    writing,
)
from rlx.frontends.torch.written import write as store
from rlx.runtime.executable import adopt

if TYPE_CHECKING:
    from rlx.core.exchange import ExchangeCall
    from rlx.frontends.torch.variants import OtherSizes
    from rlx.ops.op import Array
    from rlx.runtime.executable import Executable


LOG = logging.getLogger("rlx")
_NO_GRADIENTS = (
    "results of rlx.compile(module) carry no gradients. Call it under torch.no_grad(); to train, "
    "torch.compile(module, backend='rlx')."
)


@public_class
class TorchProgram:
    """A compiled model. It is called with the arguments of the module, and gives results of the
    same structure: tensors where tensors are given, arrays where arrays are. Buffers that the
    module changes are changed, arguments that it writes to are written to, and results that share
    memory with an argument do so. Weights that were changed in place are noticed."""

    def __init__(
        self,
        model: TorchModel,
        exe: Executable,
        replaced: frozenset[str],
        others: OtherSizes | None = None,
    ) -> None:
        self.others = others
        """Runs calls of sizes that the program is not for."""
        self.model, self.executable = model, exe
        """The program itself, of the flat inputs and outputs of the graph."""
        self._watching = "compared"
        held = {**model.weights, **model.constants}
        self._names = tuple(n for n in held if n not in replaced)
        self._watch = self._watched({n: held[n] for n in self._names})
        self._dims = _dim_places(model)
        signature = model.signature
        self._sources = [s for s in signature.inputs if not isinstance(s, RandomState)]
        self._writes: list[Source] = [*signature.states, *(w.source for w in signature.writes)]
        self._is_grad_enabled: Callable[[], bool] = torch.is_grad_enabled
        self._has_trained = any(t.requires_grad for t in self._watch.tensors)
        self._bind()
        exe.follow(self, TorchProgram._bind)

    def __getattr__(self, name: str) -> Any:
        """What the program has: explain, profile, memory, save …"""
        if name.startswith("__") or name == "executable":
            raise AttributeError(name)
        return getattr(self.executable, name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._is_grad_enabled():
            self._require_no_grad(args)
        return self._general(*args, **kwargs) if kwargs else self._quick(*args)

    def _general(self, *args: Any, **kwargs: Any) -> Any:
        """A call that native code does not make: of other arguments than tensors on the host with
        elements in order, with changed weights, or of a model that writes or shows what it was
        given."""
        flat = self._flat(args, kwargs)
        if self._is_grad_enabled():
            self._require_no_grad(flat)
        return self._structured(self.run_current(flat))

    def _require_no_grad(self, given: Sequence[Any]) -> None:
        """Results have no grad_fn: an error where a gradient is certainly expected of them, and a
        warning, once, where weights alone require one."""
        for i, value in enumerate(given):
            if getattr(value, "requires_grad", False):
                raise Error(f"{self.model.name}: argument {i} requires grad, and {_NO_GRADIENTS}")
        if self._has_trained:
            self._has_trained = False
            LOG.warning("%s: its weights require grad, and %s", self.model.name, _NO_GRADIENTS)

    def _bind(self) -> None:
        """Have calls made natively, with the weights of now, where they can be."""
        call = self._native_call()
        self._known = None if call is None else call.written
        loaded = self.executable.native
        held = weakref.ref(self)

        def general(*args: Any) -> Any:
            found = held()  # whoever calls has it
            assert found is not None
            return found._general(*args)

        made = None if call is None or loaded is None else loaded.exchange(call, general)
        self._quick: Callable[..., Any] = general if made is None else made

    def _native_call(self) -> ExchangeCall | None:
        """Calls with positional tensors whose result is a tensor or a tuple of them."""
        signature = self.model.signature
        given = pytree.tree_structure(((0,) * signature.num_arguments, {}))
        results = (0,) * len(signature.results)
        is_single = signature.out_spec == pytree.tree_structure(0)
        if signature.in_spec != given:
            return None
        if not is_single and signature.out_spec != pytree.tree_structure(results):
            return None
        places = [None] * len(self._names)
        return native_call(self.model, self._watch, places, is_tuple=not is_single)

    def _structured(self, results: list[Any]) -> Any:
        return pytree.tree_unflatten(results, self.model.signature.out_spec)

    def run(self, flat: Sequence[Any]) -> list[Any]:
        """The flat results of flat arguments. Torch computes them where a tensor that is written
        shares memory with another."""
        if (first := self._shared(flat)) is not None:
            return self._by_torch(first, flat)
        try:
            return self._computed(flat)
        except OutOfRange:
            if self.others is None:
                raise
            return self.others.program(flat, self._for_others).run_current(flat)

    def run_current(self, flat: Sequence[Any]) -> list[Any]:
        """The flat results of flat arguments, with the weights as they are now."""
        self.refresh_weights()
        return self.run(flat)

    def _for_others(
        self, model: TorchModel, exe: Executable, replaced: frozenset[str]
    ) -> TorchProgram:
        """The program of the same model for other sizes, which notices writes as this one does."""
        program = self._loaded(model, exe, replaced)
        if self._watching != program._watching:
            program.watch_weights(self._watching)
        return program

    def _loaded(self, model: TorchModel, exe: Executable, replaced: frozenset[str]) -> TorchProgram:
        return TorchProgram(model, exe, replaced)

    def _computed(self, flat: Sequence[Any]) -> list[Any]:
        arrays = [self._input(source, flat) for source in self.model.signature.inputs]
        written = self._written(flat)
        self._note(written)
        given = [*arrays, *(w.array for w in written)]
        with writing(written):
            made = self.executable(*given)
        outputs = made if isinstance(made, tuple) else (made,)
        self._write_back(outputs, flat)
        is_torch = _has_tensors(flat) or not _has_arrays(flat)
        sizes = {n: given[i].shape[a] for n, (i, a) in self._dims.items()}
        return [
            self._result(r, outputs, flat, sizes, is_torch) for r in self.model.signature.results
        ]

    def _by_torch(self, shared: Source, flat: Sequence[Any]) -> list[Any]:
        LOG.info("%s: torch runs this call: %s, which it writes, shares memory with another tensor",
                 self.model.name, shared.name)  # fmt: skip
        results = self.model.eager(flat)
        is_torch = _has_tensors(flat) or not _has_arrays(flat)
        return results if is_torch else [array_of(r) if _is_tensor(r) else r for r in results]

    def _shared(self, flat: Sequence[Any]) -> Source | None:
        """A tensor that the call writes, and that shares memory with another, or with itself."""
        if not self._writes:
            return None
        reaches = {s: reach(self._holder(s, flat)) for s in (*self._sources, *self._writes)}
        for written in self._writes:
            others = (e for s, e in reaches.items() if s != written)
            is_shared = overlaps(reaches[written], [*others, *self._watch.edges])
            if is_shared or is_folded(self._holder(written, flat)):
                return written
        return None

    # -- what goes in -----------------------------------------------------------------------------

    def _flat(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        wanted = self.model.signature.in_spec
        if kwargs:
            from torch.export._tree_utils import (  # pyright: ignore[reportMissingImports]
                reorder_kwargs,
            )

            with contextlib.suppress(AssertionError, ValueError):
                kwargs = reorder_kwargs(dict(kwargs), wanted)
        flat, spec = pytree.tree_flatten((tuple(args), dict(kwargs)))
        if spec == wanted or (wanted is None and len(flat) == self.model.signature.num_arguments):
            return flat
        by_name = self._by_name(flat) if not kwargs else None
        if by_name is None:
            raise Error(
                f"{self.model.name}: the arguments are not those that it was exported for: got "
                f"{_shown(spec)}, expected {_shown(wanted)}."
            )
        return by_name

    def _by_name(self, flat: list[Any]) -> list[Any] | None:
        """Flat tensors in the order of the graph's inputs will do for any structure."""
        return flat if len(flat) == self.model.signature.num_arguments else None

    def _input(self, source: Any, flat: Sequence[Any]) -> Array:
        match source:
            case Argument(place=place, order=order):
                array = _array(flat[place], source.name)
                return array if order is None else array.transpose(order)
            case RandomState():
                drawn = torch.empty((), dtype=torch.int64).random_()
                return np.asarray(drawn.numpy().view(np.uint64))
            case _:
                return array_of(self._holder(source, flat))

    def _written(self, flat: Sequence[Any]) -> list[Written]:
        """The memory of what the call writes in place."""
        model = self.model
        if not model.signature.states:
            return []
        held = [self._holder(s, flat) for s in model.signature.states]
        dtypes = [n.shape.dtype for n in model.graph.states]
        return [Written.of(h, d) for h, d in zip(held, dtypes, strict=True)]

    def _note(self, written: Sequence[Written]) -> None:
        """Have native calls write this memory, which nothing else of a call is in."""
        if written and self._known is not None and all(w.is_own for w in written):
            self._known[:, 1:] = [edges_of(w.array) for w in written]

    def _holder(self, source: Any, flat: Sequence[Any]) -> Any:
        """The tensor, or array, that an input or state is read from."""
        match source:
            case Argument(place=place):
                return flat[place]
            case State(target=target):
                return self.model.state[target]
            case _:
                raise AssertionError(source)

    # -- weights ----------------------------------------------------------------------------------

    def watch_weights(self, how: str = "compared") -> None:
        """How calls notice that weights were written. `"compared"`: those of which the program has
        copies, packed ones for instance, are hashed before each call, at the speed of memory.
        `"counted"`: the caller sees to it that they are written by ops that torch counts in
        `tensor._version`, and neither through `tensor.data` nor NumPy's views nor by fused
        optimisers; their memory is not read."""
        if how not in ("compared", "counted"):
            raise Error(f"watch_weights takes 'compared' or 'counted', got {how!r}.")
        self.refresh_weights()
        self._watching = how
        self._watch = self._watched(dict(zip(self._names, self._watch.tensors)))
        self._bind()
        if self.others is not None:
            self.others.clear()

    def set_params(self, params: Mapping[str, Any]) -> None:
        """Give weights by name, in the place of the module's."""
        self.executable.set_params(params)
        if self.others is not None:
            self.others.set_params(params)

    @property
    def programs(self) -> tuple[Executable, ...]:
        """The programs, each as an executable; those for sizes that the first is not for are made
        when calls need them."""
        others = self.others.programs if self.others else ()
        return (*self.executable.programs, *(o.executable for o in others))

    def refresh_weights(self) -> None:
        """Take over weights that were changed since the last call: what depends on them is
        prepared again."""
        if not self._watch.is_unchanged():
            self._adopt(self._watch.tensors)

    def _adopt(self, given: Sequence[Any]) -> None:
        """Use these weights from now on; only those that are other than before are prepared."""
        now = self._watch.again(given)
        changed = now.news(self._watch)
        for name in changed.keys() & self.model.constants.keys():
            raise Error(
                f"{self.model.name}: the tensor {name}, which the model has as a constant, was "
                "changed. Compile the model again, or make it a buffer of the module."
            )
        self._watch = now
        adopt(self.executable, {n: weight_array(t) for n, t in changed.items()})

    def _watched(self, weights: Mapping[str, Any]) -> Watch:
        """Weights as they are now. What one program for all calls reads where it is needs not be
        compared."""
        loaded = self.executable.native
        if self._watching == "counted":
            return Watch(weights, None, MemoryDigests)
        if loaded is None:
            return Watch(weights, frozenset(weights), MemoryDigests)
        copied = loaded.program.copied_params | self.model.constants.keys()
        return Watch(weights, copied, loaded.program.digests)

    # -- what comes out ---------------------------------------------------------------------------

    def _write_back(self, outputs: Sequence[Array], flat: Sequence[Any]) -> None:
        for write in self.model.signature.writes:
            store(self._holder(write.source, flat), outputs[write.output])

    def _result(
        self, result: Result, outputs: Sequence[Array], flat: Sequence[Any],
        sizes: Mapping[str, int], is_torch: bool,
    ) -> Any:  # fmt: skip
        if result.views is not None and (is_torch or result.is_shown):
            shown = self._viewed(result, result.views, outputs, flat, sizes)
            return shown if is_torch else array_of(shown)
        if result.output is None:
            return result.constant
        if result.constant is not None:
            return outputs[result.output].item()
        value = outputs[result.output].copy() if result.is_copy else outputs[result.output]
        if not is_torch:
            return value if result.perm is None else value.transpose(np.argsort(result.perm))
        return _permuted(value, result.perm)

    def _viewed(
        self, result: Result, views: Views, outputs: Sequence[Array], flat: Sequence[Any],
        sizes: Mapping[str, int],
    ) -> Any:  # fmt: skip
        match views.source:
            case Output(place=place, perm=perm):
                value = outputs[place].copy() if result.is_copy else outputs[place]
                base = _permuted(value, perm)
            case source:
                held = self._holder(source, flat)
                base = held if isinstance(held, torch.Tensor) else tensor_of(held)
        with torch.no_grad():
            return views.shown(base.detach() if base.requires_grad else base, sizes)

    def __repr__(self) -> str:
        return f"<TorchProgram {self.executable!r}>"


def _ordered(made: Any, order: tuple[int, ...] | None) -> Any:
    return made if order is None else made.permute(order)


def _permuted(value: Array, perm: tuple[int, ...] | None) -> Any:
    """A tensor of an output that is stored in another order of axes."""
    return _ordered(tensor_of(value), inverse(perm))


def _array(value: Any, name: str) -> Array:
    if isinstance(value, torch.Tensor):
        return array_of(value)
    if isinstance(value, int):
        return np.asarray(value, np.int64)
    if isinstance(value, np.ndarray | np.generic):
        return np.asarray(value)
    raise Error(f"input {name!r} is {type(value).__name__}, expected a tensor or an array.")


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def _has_tensors(flat: Sequence[Any]) -> bool:
    return any(map(_is_tensor, flat))


def _has_arrays(flat: Sequence[Any]) -> bool:
    return any(isinstance(v, np.ndarray) for v in flat)


def _dim_places(model: TorchModel) -> dict[str, tuple[int, int]]:
    """Name of a dim → an input or state, and the axis that has its size."""
    found: dict[str, tuple[int, int]] = {}
    for i, node in enumerate(model.graph.given):
        for axis, dim in enumerate(node.shape.dims):
            symbol = dim.bound_symbol if isinstance(dim, Dim) else None
            if symbol is not None:
                found.setdefault(symbol.name, (i, axis))
    return found


def _shown(spec: Any) -> str:
    return str(spec)[:200].replace("\n", " ")
