"""onnxruntime's interface: `rlx.InferenceSession(path).run(None, feed)`, for drop-in use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rlx.backends.registry import find_backend
from rlx.core.dim import Dim
from rlx.core.errors import Error, UnsupportedError
from rlx.core.public_calls import public_class, warn_user
from rlx.core.shape import Shape
from rlx.frontends.files import load
from rlx.frontends.onnx.model import Model
from rlx.ops.op import Array
from rlx.runtime.executable import Executable
from rlx.runtime.named_calls import UnknownCall
from rlx.runtime.session import Session

PROVIDERS = {
    "CPUExecutionProvider": "cpu", "CUDAExecutionProvider": "cuda",
    "TensorrtExecutionProvider": "cuda", "ROCMExecutionProvider": "rocm",
    "MIGraphXExecutionProvider": "rocm", "CoreMLExecutionProvider": "metal",
    "WebGpuExecutionProvider": "wgpu",
}  # fmt: skip
"""What onnxruntime calls a device → the target that runs on it."""
_KINDS = {
    "f32": "float", "f64": "double", "f16": "float16", "bf16": "bfloat16", "bool": "bool",
    "c64": "complex64", "c128": "complex128",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class NodeArg:
    """An input or output as onnxruntime describes it; a named dim is its name."""

    name: str
    shape: list[int | str | None]
    type: str


@public_class
class InferenceSession:
    """A compiled model with onnxruntime's calls. `providers` choose the target, the first that is
    here; of `sess_options` the number of threads counts (`intra_op_num_threads`)."""

    def __init__(
        self,
        path_or_bytes: Any,
        sess_options: Any = None,
        providers: Sequence[Any] | None = None,
        provider_options: Sequence[Mapping[str, Any]] | None = None,
        **ignored: Any,
    ) -> None:
        del provider_options, ignored
        threads = _threads(sess_options)
        self._provider = _provider(providers)
        found = load(path_or_bytes, threads=threads)
        self._exe: Any = found
        if not isinstance(found, Executable):
            self._exe = Session(PROVIDERS[self._provider], threads=threads).compile(found)
        self._model = found if isinstance(found, Model) else None

    @property
    def executable(self) -> Any:
        """What rlx compiled: `explain`, `profile` and all else that it can say."""
        return self._exe

    def run(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        run_options: Any = None,
    ) -> list[Array]:
        """The outputs of these names, or all, in a list."""
        del run_options
        is_all = output_names is None or (isinstance(output_names, list) and not output_names)
        return list(self._exe.run(input_feed, None if is_all else output_names).values())

    def get_inputs(self) -> list[NodeArg]:
        """Name, shape and type of each input."""
        return self._args(self._exe.inputs, "input")

    def get_outputs(self) -> list[NodeArg]:
        """Name, shape and type of each output."""
        return self._args(self._exe.outputs, "output")

    def get_providers(self) -> list[str]:
        """The provider that runs it."""
        return [self._provider]

    def get_overridable_initializers(self) -> list[NodeArg]:
        """None: weights are changed by `executable.set_params`."""
        return []

    def io_binding(self) -> Any:
        """Not offered: the error names `executable.bind`."""
        raise UnsupportedError(
            "io_binding is onnxruntime's own. Use session.executable.bind(*arrays) for calls on "
            "memory of a device, or executable.run(feed, out={name: array}) to write into arrays."
        )

    def run_with_iobinding(self, iobinding: Any, run_options: Any = None) -> Any:
        """Not offered: the error names `executable.bind`."""
        del iobinding, run_options
        return self.io_binding()

    def __getattr__(self, name: str) -> Any:
        raise UnknownCall(
            f"rlx.InferenceSession has no {name!r}. It has run, get_inputs, get_outputs and "
            "get_providers; what rlx itself offers is session.executable."
        )

    def _args(self, shapes: Mapping[str, Shape | None], kind: str) -> list[NodeArg]:
        """As the file declares them, where there is one: names of dims are the file's."""
        declared = {} if self._model is None else _declared(self._model, kind)
        return [declared.get(n) or _arg(n, s) for n, s in shapes.items()]


def _declared(model: Model, kind: str) -> dict[str, NodeArg]:
    graph = model.reader.model.graph
    infos = graph.input if kind == "input" else graph.output
    return {i.name: _from_info(i) for i in infos if i.type.HasField("tensor_type")}


def _from_info(info: Any) -> NodeArg:
    from onnx import TensorProto

    tensor = info.type.tensor_type
    dims: list[int | str | None] = [
        d.dim_value if d.HasField("dim_value") else (d.dim_param or None) for d in tensor.shape.dim
    ]
    kind = TensorProto.DataType.Name(tensor.elem_type).lower()
    return NodeArg(info.name, dims, f"tensor({kind})")


def _arg(name: str, shape: Shape | None) -> NodeArg:
    if shape is None:
        return NodeArg(name, [], "unknown")
    dims: list[int | str | None] = [str(d) if isinstance(d, Dim) else d for d in shape.dims]
    text = shape.dtype.value
    kind = _KINDS.get(text) or ("u" if text[0] == "u" else "") + f"int{text[1:]}"
    return NodeArg(name, dims, f"tensor({kind})")


def _threads(options: Any) -> int | None:
    if options is None:
        return None
    count = getattr(options, "intra_op_num_threads", None)
    if not isinstance(count, int):
        raise Error(
            f"sess_options is {options!r}. Give an onnxruntime.SessionOptions, or anything with "
            "intra_op_num_threads; in rlx it is rlx.compile(path, threads=…)."
        )
    return count or None


def _provider(providers: Any) -> str:
    """The first that can run here; those that cannot are named in a warning."""
    if providers is None:
        return "CPUExecutionProvider"
    if isinstance(providers, str) or not isinstance(providers, Sequence) or not providers:
        raise Error(f"providers is {providers!r}. Give a list such as ['CPUExecutionProvider'].")
    for given in providers:
        name = given[0] if isinstance(given, tuple) and given else given
        if name not in PROVIDERS:
            raise Error(f"there is no provider {name!r}. Use one of: {', '.join(PROVIDERS)}.")
        missing = find_backend(PROVIDERS[name]).missing()
        if missing is None:
            return name
        warn_user(f"{name} cannot run here: {missing.reason}")
    raise Error(f"none of the providers can run here: {providers!r}. Use 'CPUExecutionProvider'.")
