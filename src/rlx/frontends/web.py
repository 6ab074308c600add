"""Models as folders for browsers: compiled here, without a GPU, and run there by WebGPU, or by
WebAssembly where there is none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from rlx.core.arguments import FLAG, MAPPING, NONE, Kind, instance, takes
from rlx.core.arrays import as_array
from rlx.core.errors import Error, UnsupportedError
from rlx.core.files import path_of
from rlx.passes.options import FusionOptions

if TYPE_CHECKING:
    import os

    from rlx.backends.gpu.backend import GpuBackend
    from rlx.backends.web.engine import Part
    from rlx.backends.web.export import Exported
    from rlx.backends.web.weights import WeightsFile
    from rlx.cost.target import Target
    from rlx.frontends.files import Source
    from rlx.frontends.onnx.model import Model, Read
    from rlx.ir.bundle import Bundle
    from rlx.ir.hir import HirModule
    from rlx.ir.lir import LirModule
    from rlx.ir.mir import Graph, MirModule
    from rlx.ops.op import Array


Engine = Literal["webgpu", "wasm"]
ENGINES: tuple[Engine, ...] = ("webgpu", "wasm")
_SOME = Kind(
    "a tuple of 'webgpu' and 'wasm', or of one of them",
    lambda v: isinstance(v, tuple | list) and bool(v) and all(e in ENGINES for e in v),  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
)


@takes(
    params=NONE | MAPPING,
    options=NONE | instance(FusionOptions),
    has_f16=FLAG,
    engines=_SOME,
    inputs=NONE | MAPPING,
)
def export_web(
    model: Source | Bundle | Graph | MirModule | HirModule,
    folder: str | os.PathLike[str],
    *,
    params: Mapping[str, Any] | None = None,
    options: FusionOptions | None = None,
    has_f16: bool = False,
    engines: Sequence[Engine] = ENGINES,
    inputs: Mapping[str, Any] | None = None,
) -> Exported:
    """Write a folder that a page loads with `import { load } from "./rlx.js"`: kernels in WGSL for
    WebGPU, a program in WebAssembly for where there is none, the weights, the runtime and a page
    that times the model. `model` is a path, or what else `rlx.load` takes or gives.

    `params` are weights that the model does not bring, or others. The sizes of `options` are those
    that the page is prepared for when it loads; it runs at all others, too. With `has_f16` kernels
    may use halves as adapters with shader-f16 have them; on others WebAssembly computes then.
    `engines` are those that the folder is for; where one of them cannot run the model, the
    folder is without it, and `refused` of what is returned says why. A model that is another for
    other inputs, as where values decide shapes, is exported for `inputs` like those of one call.
    """
    from rlx.backends.web.export import export

    graph, own = _parts(model, inputs)
    given: dict[str, Any] = {**own, **(params or {})}
    make = _Make(graph, given, options or FusionOptions(), has_f16)
    every = {"webgpu": make.webgpu, "wasm": make.wasm}
    return export(
        {name: every[name] for name in ENGINES if name in engines}, given, path_of(folder)
    )


@dataclass(frozen=True, slots=True)
class _Make:
    """A model that engines compile."""

    graph: Any
    params: Mapping[str, Array]
    options: FusionOptions
    has_f16: bool

    def webgpu(self, weights: WeightsFile) -> Part:
        from rlx.backends.web.webgpu.engine import webgpu_part

        backends = web_backends(has_f16=self.has_f16)
        planned = {kind: (self._planned(b.target()), b) for kind, b in backends.items()}
        return webgpu_part(planned, self.params, weights, self.options.sizes)

    def wasm(self, weights: WeightsFile) -> Part:
        from rlx.backends.cpu.backend import backend
        from rlx.backends.web.wasm import wasm_part

        lir = self._planned(backend.configured("wasm", 1).target())
        return wasm_part(lir, self.params, weights)

    def _planned(self, target: Target) -> LirModule:
        from rlx.backends.web.export import check
        from rlx.ir.interface import Interface
        from rlx.pipeline import CompilePipeline

        lir = CompilePipeline(target, options=self.options).compile(self.graph).lir
        check(Interface.planned(lir), self.params)
        return lir


def web_backends(*, has_f16: bool = False) -> Mapping[str, GpuBackend]:
    """What compiles for browsers: on GPUs, and where the adapter is the host's processor."""
    from dataclasses import replace

    from rlx.backends.wgpu.backend import backend
    from rlx.backends.wgpu.machine import DEFAULT

    made = replace(DEFAULT, has_f16=has_f16)
    kinds = {"gpu": made, "software": replace(made, is_software=True)}
    return {kind: backend.configured(a.name, None) for kind, a in kinds.items()}


def _parts(model: Any, inputs: Mapping[str, Any] | None) -> tuple[Any, Mapping[str, Array]]:
    """What is compiled, and the weights that come with it."""
    from rlx.frontends.files import SOURCE, load
    from rlx.frontends.onnx.model import Model
    from rlx.ir.bundle import Bundle
    from rlx.ir.lir import LirModule
    from rlx.runtime.executable import Executable

    if isinstance(model, str) or (not isinstance(model, Bundle) and SOURCE.accepts(model)):
        model = load(model)
    if isinstance(model, Model):
        return plain_parts(_read(model, inputs), model.name)
    if isinstance(model, Bundle):
        return model.graph, model.params
    if isinstance(model, Executable | LirModule):
        raise Error(
            f"a {type(model).__name__} is planned for one target already. Export the model that it "
            "was compiled from."
        )
    return model, {}


def _read(model: Model, inputs: Mapping[str, Any] | None) -> Read:
    """The model, or what it is for inputs."""
    if not model.is_static:
        return model.whole()
    missing = [n for n in model.inputs if n not in (inputs or {})]
    if inputs is None or missing:
        raise Error(
            f"{model.name}: its graph depends on the call. {model.why_static}. Give arrays like "
            f"those of one call: export_web(…, inputs={{{', '.join(map(repr, missing))}}})."
        )
    return model.specialised([as_array(inputs[n], f"input {n!r}") for n in model.inputs])


def plain_parts(read: Read, name: str) -> tuple[Graph, Mapping[str, Array]]:
    """The graph and the weights of a model that is one program of tensors."""
    if not read.is_plain:
        why = "; ".join(s.decision.reason for s in read.steps)
        what = f"the host does some of it: {why}" if why else "it takes or gives other than tensors"
        raise UnsupportedError(
            f"{name} cannot be exported for browsers: {what}. Cut the model there, or run it with "
            "rlx."
        )
    return read.graph, read.params
