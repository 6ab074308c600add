"""Loading and saving models: the format follows from the name of the file."""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from rlx.core.arguments import COUNT, NONE, PATH, WHOLE, Kind, takes
from rlx.core.errors import Error, InputError, UnknownFormatError, UnsupportedError
from rlx.core.files import path_of, writing
from rlx.core.public_calls import public
from rlx.core.sections import MAGIC, Sections

if TYPE_CHECKING:
    import os

    from rlx.frontends.gguf.model import GgufModel
    from rlx.frontends.onnx.model import Model
    from rlx.frontends.safetensors.model import FolderModel
    from rlx.frontends.torch.model import TorchModel
    from rlx.ir.hir import HirModule
    from rlx.ir.lir import LirModule
    from rlx.ir.mir import Graph, MirModule
    from rlx.runtime.executable import Executable

Source: TypeAlias = "str | os.PathLike[str] | bytes | bytearray | memoryview | Any"
"""A path, the bytes of a file, an open file, an onnx.ModelProto or torch's ExportedProgram."""
SOURCE = PATH | Kind(
    "the bytes of a model, an open file of them, an onnx.ModelProto or a torch ExportedProgram",
    lambda v: (
        isinstance(v, bytes | bytearray | memoryview)
        or hasattr(v, "read")
        or _is_proto(v)
        or _is_exported(v)
    ),
)
_KNOWN = (
    "It loads .onnx and .gguf models, torch's .pt2 programs, folders of safetensors, .ir and .lir "
    "text, and .rlx programs."
)


@takes(threads=NONE | COUNT, device=NONE | WHOLE)
def load(
    source: Source, *, threads: int | None = None, device: int | None = None
) -> Model | FolderModel | GgufModel | TorchModel | MirModule | HirModule | LirModule | Executable:
    """The model of a path, of bytes, of an open file, of an onnx.ModelProto or of torch's
    ExportedProgram: an `.onnx` file gives a Model, which `rlx.compile` takes, and so do a folder
    with config.json and safetensors of the BERT family or of a language model, a `.gguf` file
    and a `.pt2` file that torch.export.save wrote; `.ir` text gives a MirModule or a HirModule, a
    `.lir` file the LirModule that was planned, a `.rlx` file that `exe.save` wrote the Executable,
    with `threads` and `device` as `rlx.compile` takes them. What bytes are follows from how they
    begin.

    Nothing in a model's file is run, nor believed. Weights are copied into memory, once: what
    happens to the file afterwards changes nothing.

    A `.rlx` file holds machine code, and loading it is running it: load only one that you trust.
    Bytes and open files of one are refused: `load_program` opens them.
    """
    SOURCE.check("the path", source)
    if not PATH.accepts(source):
        return _held(source)
    file = path_of(source)
    kind = file.suffix.lower()
    if file.is_dir():
        return _folder(file)
    match kind:
        case ".safetensors":
            return _folder(_folder_of(file))
        case ".onnx":
            return _model(file)
        case ".gguf":
            return _decoder(file)
        case ".pt2":
            from rlx.frontends.torch.pt2_archive import load_pt2

            return load_pt2(file)
        case ".ir":
            return _module(_text(file), file.name)
        case ".lir":
            return _planned(_text(file), file.name)
        case ".rlx":
            return load_program(file, threads=threads, device=device)
        case _:
            what = f"rlx does not know {kind!r} files" if kind else "its name has no suffix"
            raise UnknownFormatError(f"{file}: {what}. {_KNOWN}")


@takes(threads=NONE | COUNT, device=NONE | WHOLE)
def load_program(
    source: Source, *, threads: int | None = None, device: int | None = None
) -> Executable:
    """The Executable that `exe.save` wrote to a file: of its path, whatever its suffix, of its
    bytes, or of an open file. It holds machine code, and loading it is running it: load only one
    that you trust. `threads` and `device` are as `rlx.compile` takes them."""
    from rlx.runtime.artefact_file import executable_of, read

    SOURCE.check("the program", source)
    if isinstance(source, str | PathLike):
        return read(source, threads, device)
    if _is_proto(source) or _is_exported(source):
        raise Error(f"a {type(source).__name__} is a model, not a program. Use rlx.compile.")
    is_bytes = isinstance(source, bytes | bytearray | memoryview)
    name, data = ("program", memoryview(source)) if is_bytes else _read(source)
    return executable_of(Sections.of(name, data), threads, device)


def _held(source: Any) -> Any:
    """The model that is in memory, or read from an open file."""
    if _is_exported(source):
        from rlx.frontends.torch.model import from_exported

        return from_exported(source)
    if _is_proto(source):
        return _of_proto(source)
    name, data = _read(source) if hasattr(source, "read") else ("model", memoryview(source))
    head = bytes(data[:64]).lstrip()
    if head.startswith(MAGIC):
        raise Error(
            f"{name} is a compiled program, not a model: it holds machine code. If you trust it, "
            "open it by rlx.load_program."
        )
    if head.startswith((b"mir ", b"hir ")):
        return _module(_decoded(bytes(data), name), name)
    if head.startswith(b"lir "):
        return _planned(_decoded(bytes(data), name), name)
    return _of_bytes(data, "" if name == "model" else name)


def _read(source: Any) -> tuple[str, memoryview]:
    """The name of an open file, and its bytes from here on."""
    called = getattr(source, "name", None)
    try:
        data = source.read()
    except (OSError, ValueError) as error:
        raise Error(f"the file cannot be read: {error}.") from None
    held = data.encode() if isinstance(data, str) else data
    if not isinstance(held, bytes | bytearray | memoryview):
        raise Error(f"the file gives {type(data).__name__}, not bytes. Open it with mode 'rb'.")
    return Path(called).stem if isinstance(called, str) else "model", memoryview(held)


def _is_proto(source: Any) -> bool:
    return hasattr(source, "SerializeToString") and hasattr(source, "opset_import")


def _is_exported(source: Any) -> bool:
    from rlx.frontends.torch.export import is_exported

    return is_exported(source)


def _of_proto(proto: Any) -> Model:
    """Serialised, so that changing the object later changes nothing."""
    from rlx.frontends.onnx.model import from_proto
    from rlx.frontends.onnx.reader import MAX_FILE

    if proto.ByteSize() >= MAX_FILE:
        return from_proto(proto)
    return _of_bytes(memoryview(proto.SerializeToString()))


def _of_bytes(data: memoryview, name: str = "") -> Model:
    from rlx.frontends.onnx.files import ModelFile
    from rlx.frontends.onnx.model import read_file

    copy = memoryview(bytes(data))  # what the caller does to its own changes nothing
    return read_file(ModelFile(Path(name), copy, is_on_disk=False))


def compilable(model: Any) -> Any:
    """What `rlx.compile` takes, loaded where it is a path or another source of a model."""
    from rlx.pipeline import cannot_compile
    from rlx.runtime.executable import Executable

    if not SOURCE.accepts(model) and not isinstance(model, str):
        raise cannot_compile(model)
    found = load(model)
    if isinstance(found, Executable):
        raise Error(f"{found.name} is compiled already, for {found.backend.name}. Use rlx.load.")
    return found


@public
def save(
    model: Graph | MirModule | HirModule | LirModule | Executable, path: str | os.PathLike[str]
) -> None:
    """Write what `load` reads: the text of a graph or module to `.ir`, a planned module to `.lir`,
    a compiled program with its weights to `.rlx`. The file is written whole, or not at all."""
    from rlx.ir.hir import HirModule
    from rlx.ir.lir import LirModule
    from rlx.ir.mir import Graph, MirModule
    from rlx.runtime.executable import Executable

    match model:
        case Executable():
            model.save(path)
        case LirModule():
            from rlx.plan.lir_text import lir_text

            _write(path, lir_text(model))
        case Graph() | MirModule() | HirModule():
            _write(path, str(model))
        case _:  # pyright: ignore[reportUnnecessaryComparison]
            raise Error(
                f"cannot save a {type(model).__name__}. Give a Graph, a MirModule, a HirModule, a "
                "LirModule or an Executable."
            )


def _write(path: str | os.PathLike[str], text: str) -> None:
    with writing(path) as file:
        file.write(text.encode())


def _model(file: Path) -> Model:
    from rlx.frontends.onnx.model import load

    return load(file)


def _folder(folder: Path) -> FolderModel | GgufModel:
    """A decoder or an encoder, as config.json says."""
    from rlx.frontends.gguf.folder import is_language_model
    from rlx.frontends.safetensors.model import load

    return _decoder(folder) if is_language_model(folder) else load(folder)


def _decoder(file: Path) -> GgufModel:
    from rlx.frontends.gguf.model import load as load_gguf

    return load_gguf(file)


def _folder_of(file: Path) -> Path:
    """Weights alone are no model: config.json beside them says which."""
    from rlx.frontends.safetensors.reader import WEIGHTS

    if not file.is_file():
        raise Error(f"{file} cannot be read: it is no file.")
    if file.name != WEIGHTS:
        raise UnsupportedError(
            f"{file}: rlx loads folders, where weights are in {WEIGHTS}. Give the folder."
        )
    return file.parent


def _module(text: str, name: str) -> MirModule | HirModule:
    from rlx.ir.text import read_module

    return read_module(text, name)


def _planned(text: str, name: str) -> LirModule:
    from rlx.runtime.lir_file import read_lir

    return read_lir(text, name)


def _text(file: Path) -> str:
    try:
        data = file.read_bytes()
    except (OSError, ValueError) as error:
        raise InputError(f"{file} cannot be read: {error}.") from None
    return _decoded(data, str(file))


def _decoded(data: bytes, name: str) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise Error(f"{name} is not UTF-8 text: {error.reason} at byte {error.start}.") from None
