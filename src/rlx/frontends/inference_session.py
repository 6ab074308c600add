"""onnxruntime's interface: `rlx.InferenceSession(path).run(None, feed)`, for drop-in use."""

from __future__ import annotations

import copy
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
"""What onnxruntime calls a device → the target that runs on it. Others cannot run."""
DEFAULT_PROVIDER = "CPUExecutionProvider"
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
    """A compiled model with onnxruntime's calls. `providers` choose the target, the first that can
    run here, else the CPU, with a warning for each that cannot; of `sess_options` the number of
    threads counts (`intra_op_num_threads`)."""

    def __init__(
        self,
        path_or_bytes: Any,
        sess_options: Any = None,
        providers: Sequence[Any] | None = None,
        provider_options: Sequence[Mapping[str, Any]] | None = None,
        **ignored: Any,
    ) -> None:
        del ignored
        threads = _threads(sess_options)
        self._provider = _provider(providers, provider_options)
        found = load(path_or_bytes, threads=threads)
        self._exe: Any = found
        if not isinstance(found, Executable):
            self._exe = Session(PROVIDERS[self._provider], threads=threads).compile(found)
        self._model = found if isinstance(found, Model) else None
        self._stated: dict[str, list[NodeArg]] = {}
        """Inputs and outputs, once they were asked for: the file is parsed for their dims."""

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
        """The outputs of these names, or all, in a list; a name that is there twice, twice."""
        del run_options
        is_all = output_names is None or (
            isinstance(output_names, list | tuple) and not output_names
        )
        made = self._exe.run(input_feed, None if is_all else output_names)
        return list(made.values()) if is_all else [made[n] for n in output_names or ()]

    def get_inputs(self) -> list[NodeArg]:
        """Name, shape and type of each input."""
        return list(self._args(self._exe.inputs, "input"))

    def get_outputs(self) -> list[NodeArg]:
        """Name, shape and type of each output."""
        return list(self._args(self._exe.outputs, "output"))

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

    def __copy__(self) -> InferenceSession:
        """The same programs and weights; `set_params` of one is not the other's."""
        made = _restored(copy.copy(self._exe), self._provider, self._stated)
        made._model = self._model
        return made

    def __deepcopy__(self, memo: Any) -> InferenceSession:
        """Nobody changes a program or weights in memory: they are shared."""
        return self.__copy__()

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled as its executable is, without the model's file."""
        stated = {"input": self.get_inputs(), "output": self.get_outputs()}
        return _restored, (self._exe, self._provider, stated)

    def __getattr__(self, name: str) -> Any:
        raise UnknownCall(
            f"rlx.InferenceSession has no {name!r}. It has run, get_inputs, get_outputs and "
            "get_providers; what rlx itself offers is session.executable."
        )

    def _args(self, shapes: Mapping[str, Shape | None], kind: str) -> list[NodeArg]:
        """As the file declares them, where there is one: names of dims are the file's."""
        if kind not in self._stated:
            declared = {} if self._model is None else _declared(self._model, kind)
            self._stated[kind] = [declared.get(n) or _arg(n, s) for n, s in shapes.items()]
        return self._stated[kind]


def _restored(exe: Any, provider: str, stated: Mapping[str, list[NodeArg]]) -> InferenceSession:
    """The session of an executable that was copied or pickled."""
    made = object.__new__(InferenceSession)
    made._exe, made._provider, made._model, made._stated = exe, provider, None, dict(stated)  # pyright: ignore[reportPrivateUsage]
    return made


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


def _provider(providers: Any, options: Any) -> str:
    """The first that can run here, or the CPU; those before it are named in warnings."""
    if providers is None:
        return DEFAULT_PROVIDER
    if isinstance(providers, str) or not isinstance(providers, Sequence):
        raise Error(f"providers is {providers!r}. Give a list such as ['{DEFAULT_PROVIDER}'].")
    given: list[Any] = list(providers)
    if options is not None and not _are_options(options, len(given)):
        raise Error(f"provider_options is {options!r}. Give a list with a dict for each provider.")
    for name in dict.fromkeys(map(_name_of, given)):
        missing = _why_missing(name)
        if missing is None:
            return name
        warn_user(f"{name} cannot run here: {missing}")
    return DEFAULT_PROVIDER


def _are_options(options: Any, count: int) -> bool:
    is_list = isinstance(options, list | tuple)
    return is_list and len(options) == count and all(isinstance(o, dict) for o in options)  # pyright: ignore


def _name_of(provider: Any) -> str:
    """A provider is its name, or that and a dict of options."""
    match provider:
        case str():
            return provider
        case (str() as name, dict()) if isinstance(provider, tuple):
            return name
        case _:
            raise Error(f"a provider is {provider!r}. Give its name, or (name, dict of options).")


def _why_missing(provider: str) -> str | None:
    """Why a provider cannot run here; None where it can."""
    if provider not in PROVIDERS:
        return f"rlx has no target for it, but for {', '.join(PROVIDERS)}"
    missing = find_backend(PROVIDERS[provider]).missing()
    return None if missing is None else missing.reason
