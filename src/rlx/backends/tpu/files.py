"""Programs of jax in files: exported functions that run anywhere, and compiled ones for the cache.

A file holds the planned graph and what `jax.export` made of each function: StableHLO for
processors, CUDA, ROCm and TPUs at once, which XLA compiles when the file is opened; no pass runs
and nothing is traced. The cache holds executables, which are loaded as they are. Functions are of
fixed sizes: those of named dims are there for the sizes that were called; others are traced from
the graph.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from rlx.backends.base import Serializer
from rlx.backends.engine.calls import Failure
from rlx.backends.engine.functions import Function, guarded
from rlx.backends.engine.module import Module
from rlx.backends.engine.steps import Segment
from rlx.backends.engine.trace import Traced
from rlx.backends.tpu.engine import JaxEngine
from rlx.backends.tpu.namespaces import export, jax, serialize_executable
from rlx.backends.tpu.program import TpuProgram
from rlx.core.errors import Error, UnsupportedError
from rlx.core.sections import Bytes, Sections

if TYPE_CHECKING:
    from rlx.backends.tpu.backend import TpuBackend

PLATFORMS = ("cpu", "cuda", "rocm", "tpu")
EXPORTED, EXECUTABLE = "exported", "executable"
Writer = Callable[[JaxEngine, Function], bytes]


@dataclass(frozen=True, slots=True)
class Files(Serializer[TpuProgram]):
    """Reads and writes programs of a backend."""

    backend: TpuBackend

    def stored(self, program: TpuProgram) -> tuple[dict[str, Any], dict[str, Bytes]]:
        """With exported functions."""
        if find_spec("flatbuffers") is None:
            raise UnsupportedError(
                f"{program.interface.name}: jax writes functions to files by flatbuffers, which is "
                "not installed: pip install flatbuffers"
            )
        return _written(program, EXPORTED, _exported)

    def kept(self, program: TpuProgram) -> tuple[dict[str, Any], dict[str, Bytes]]:
        """With executables of this device; without those that jax cannot write, and without those
        of devices that are not here, which cannot be loaded."""
        write = _nothing if self.backend.is_compile_only else _serialized
        return _written(program, EXECUTABLE, write)

    def opened(self, head: dict[str, Any], file: Sections) -> TpuProgram:
        """The program with the functions that the file has; the others are compiled."""
        module = Module.unpacked(bytes(file.section("module")), file.name)
        try:
            program = self.backend.as_was(head["mesh"], head["donated"]).unbuilt(module)
            _fill(program, head, file)
        except (KeyError, TypeError, ValueError, IndexError) as error:
            said = f"{file.name} holds no functions of jax ({error!r:.80}). Make it again."
            raise Error(said) from None
        program.build()
        return program


# -- writing --------------------------------------------------------------------------------------


def _segments(program: TpuProgram) -> list[Segment]:
    """Of the Prologue and of a call, in an order that follows from the graph."""
    steps = (*program.prologue_steps, *program.steps.call)
    return [s for s in steps if isinstance(s, Segment)]


def _written(
    program: TpuProgram, form: str, write: Writer
) -> tuple[dict[str, Any], dict[str, Bytes]]:
    sections: dict[str, Bytes] = {"module": program.module.packed()}
    rows: list[dict[str, Any]] = []
    for number, function in _functions(program):
        with program.engine.scope():
            data = write(program.engine, function)
        if data:
            sections[f"function {len(rows)}"] = data
            rows.append(_row(number, function))
    how = {"mesh": program.engine.axes, "donated": program.donated}
    return {"engine": "tpu", "form": form, **how, "functions": rows}, sections


def _functions(program: TpuProgram) -> Iterator[tuple[int, Function]]:
    for number, segment in enumerate(_segments(program)):
        yield from ((number, f) for f in program.functions.made(segment))


def _row(number: int, function: Function) -> dict[str, Any]:
    failures = [[asdict(f) for f in each] for each in function.failures]
    return {"segment": number, "sizes": dict(function.traced.sizes), "failures": failures}


def _exported(engine: JaxEngine, function: Function) -> bytes:
    """For all platforms, or, where a call is of one platform only, for the one that is here."""
    traced = function.traced
    shapes = [n.shape.bind(traced.sizes) for n in traced.segment.inputs]
    given, made = engine.arguments(traced, shapes), engine.jitted(traced)
    try:
        return bytes(export.export(made, platforms=PLATFORMS)(*given).serialize())
    except Exception:  # jax has many ways to say that a platform has no such call
        name = traced.segment.nodes[-1].label
        return guarded(engine, name, _exported_here, made, given)


def _exported_here(made: Any, given: list[Any]) -> bytes:
    return bytes(export.export(made)(*given).serialize())


def _nothing(engine: JaxEngine, function: Function) -> bytes:
    return b""


def _serialized(engine: JaxEngine, function: Function) -> bytes:
    try:
        return serialize_executable.serialize(engine.executable(function.call))[0]
    except Exception:  # an executable that holds constants, or whose platform writes none
        return b""


# -- reading --------------------------------------------------------------------------------------


def _fill(program: TpuProgram, head: Mapping[str, Any], file: Sections) -> None:
    segments, read = _segments(program), _READERS[head["form"]]
    for i, row in enumerate(head["functions"]):
        segment = segments[row["segment"]]
        failures = [tuple(Failure(**f) for f in each) for each in row["failures"]]
        traced = Traced(segment, program.engine, row["sizes"], failures)
        data = bytes(file.section(f"function {i}"))
        with program.engine.scope():
            made = guarded(program.engine, file.name, read, program.engine, traced, data)
        call = program.engine.called(made, traced)
        program.functions.keep(segment, row["sizes"], Function(call, traced, len(segment.outputs)))


def _imported(engine: JaxEngine, traced: Traced, data: bytes) -> Any:
    """What XLA compiles for the devices that are here."""
    shapes = [n.shape.bind(traced.sizes) for n in traced.segment.inputs]
    call = export.deserialize(bytearray(data)).call
    given = engine.arguments(traced, shapes)
    return engine.jit(call, traced).lower(*given).compile()


def _loaded(engine: JaxEngine, traced: Traced, data: bytes) -> Any:
    """What was compiled for these devices."""
    count = len(traced.segment.outputs) + bool(traced.failures)
    given = jax.tree.structure((((0,) * len(traced.segment.inputs)), {}))
    made = jax.tree.structure((0,) * count)
    load = serialize_executable.deserialize_and_load
    return load(data, given, made, execution_devices=engine.all_devices)


_READERS = {EXPORTED: _imported, EXECUTABLE: _loaded}
