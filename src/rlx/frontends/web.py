"""Models as folders for browsers: compiled here, without a GPU, and run there by WebGPU."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rlx.core.arguments import FLAG, MAPPING, NONE, instance, takes
from rlx.core.errors import Error, UnsupportedError
from rlx.core.files import path_of
from rlx.passes.options import FusionOptions

if TYPE_CHECKING:
    import os

    from rlx.backends.gpu.backend import GpuBackend
    from rlx.backends.wgpu.web.export import Exported
    from rlx.frontends.onnx.model import Read
    from rlx.ir.bundle import Bundle
    from rlx.ir.hir import HirModule
    from rlx.ir.mir import Graph, MirModule
    from rlx.ops.op import Array


@takes(params=NONE | MAPPING, options=NONE | instance(FusionOptions), has_f16=FLAG)
def export_web(
    model: Bundle | Graph | MirModule | HirModule,
    folder: str | os.PathLike[str],
    *,
    params: Mapping[str, Any] | None = None,
    options: FusionOptions | None = None,
    has_f16: bool = False,
) -> Exported:
    """Write a folder that a page loads with `import { load } from "./rlx.js"`: kernels in WGSL, the
    plan, the weights, the module and a page that times the model.

    `params` are weights that the model does not bring, or others. The sizes of `options` are those
    that the page is prepared for when it loads; it runs at all others, too. With `has_f16` kernels
    may use halves as adapters with shader-f16 have them; others refuse the folder then.
    """
    from rlx.backends.wgpu.web.export import export
    from rlx.pipeline import CompilePipeline

    graph, own = _parts(model)
    backends = web_backends(has_f16=has_f16)
    how = options or FusionOptions()
    planned = {
        kind: (CompilePipeline(backend.target(), options=how).compile(graph).lir, backend)
        for kind, backend in backends.items()
    }
    given: dict[str, Any] = {**own, **(params or {})}
    return export(planned, given, path_of(folder), how.sizes)


def web_backends(*, has_f16: bool = False) -> Mapping[str, GpuBackend]:
    """What compiles for browsers: on GPUs, and where the adapter is the host's processor."""
    from dataclasses import replace

    from rlx.backends.wgpu.backend import backend
    from rlx.backends.wgpu.machine import DEFAULT

    made = replace(DEFAULT, has_f16=has_f16)
    kinds = {"gpu": made, "software": replace(made, is_software=True)}
    return {kind: backend.configured(a.name, None) for kind, a in kinds.items()}


def _parts(model: Any) -> tuple[Any, Mapping[str, Array]]:
    """What is compiled, and the weights that come with it."""
    from rlx.frontends.onnx.model import Model
    from rlx.ir.bundle import Bundle
    from rlx.ir.lir import LirModule
    from rlx.runtime.executable import Executable

    if isinstance(model, Model):
        return plain_parts(model.whole(), model.name)
    if isinstance(model, Bundle):
        return model.graph, model.params
    if isinstance(model, Executable | LirModule):
        raise Error(
            f"a {type(model).__name__} is planned for one target already. Export the model that it "
            "was compiled from."
        )
    return model, {}


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
