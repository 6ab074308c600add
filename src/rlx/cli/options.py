"""What several verbs take, each option written once."""

from __future__ import annotations

import json
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from rlx.core.errors import (
    Error,
    InputError,
    InternalError,
    OutOfMemoryError,
    UnsupportedError,
)
from rlx.core.files import reason, writing
from rlx.core.tune import Tune


def names_of_targets() -> list[str]:
    from rlx.cost.target import FusionTarget

    return [t.value for t in FusionTarget]


def known_target(name: str | None) -> str | None:
    """A target that plans are made for: one of the seven, or another that has a backend; with a
    variant where its backend has some, as tpu:v5e."""
    from rlx.backends.registry import backend_names

    if name is None or name.partition(":")[0] in names_of_targets():
        return name
    known = [n for n in backend_names() if n != "reference"]
    if name not in known:
        raise typer.BadParameter(f"{name!r} is not one of: {', '.join(known)}")
    return name


def backend_target(name: str | None) -> str | None:
    """A target to run on, such as cpu, cpu:avx2 or reference."""
    if name is None:
        return None
    from rlx.backends.registry import find_backend
    from rlx.core.errors import UnsupportedError

    try:
        find_backend(name.partition(":")[0])
    except UnsupportedError:
        return name  # it is known, and compiling for it says what is missing
    except Error as error:
        raise typer.BadParameter(str(error)) from None
    return name


def _targets(incomplete: str) -> Iterable[str]:
    from rlx.backends.registry import backend_names

    return [n for n in backend_names() if n.startswith(incomplete)]


ModelFile = Annotated[
    str,
    typer.Argument(metavar="MODEL", help="An .onnx, .ir, .lir or .rlx file, or a model's folder."),
]
LANGUAGE_MODEL = "A .gguf file, or a folder of safetensors."
KvCache = Annotated[
    str | None,
    typer.Option(
        "--kv", metavar="FORMAT",
        help="What keys and values are cached in: f16, bf16, f32 or q8_0. (default: f16, or "
        "f32 with precision exact or int16)",
    ),
]  # fmt: skip
PlannedFor = Annotated[
    str,
    typer.Option(
        "--target", "-t", metavar="TARGET", callback=known_target, autocompletion=_targets,
        help="Whose plan: cpu, cuda, rocm, metal, mlx, wgpu, tpu; or a variant, as tpu:v5e:2x2.",
    ),
]  # fmt: skip
RunOn = Annotated[
    str | None,
    typer.Option(
        "--target", "-t", metavar="TARGET", callback=backend_target, autocompletion=_targets,
        help="Such as cpu, cuda, cuda:1, wgpu, reference. (default: cpu, if llvmlite is there)",
    ),
]  # fmt: skip
Threads = Annotated[
    int | None,
    typer.Option("--threads", min=1, help="Cores that a call may use. (default: all)"),
]
Activations = Annotated[
    str,
    typer.Option(
        "--precision", metavar="NAME",
        help="What quantised weights are multiplied with is rounded to: int8 (file), or int16; "
             "exact is f32, bf16 rounds f32 weights, too.",
    ),
]  # fmt: skip
Tuning = Annotated[
    Tune,
    typer.Option(
        "--tune", help="Timed search of a GPU's schedules: none, those of equal bits, or all."
    ),
]
Doubles = Annotated[
    Literal["f32"] | None,
    typer.Option(
        "--f64", help="Compute a model's f64 in f32 on targets without f64. (default: refuse it)"
    ),
]
Mesh = Annotated[
    str | None,
    typer.Option(
        "--mesh", metavar="AXES", help="Devices that run one program, with -t tpu: data=2,model=2."
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
InputFiles = Annotated[
    list[str] | None,
    typer.Option(
        "--input", metavar="NAME=FILE", help="An input, as .npy, or a number; others are random."
    ),
]
ParamFiles = Annotated[
    list[str] | None,
    typer.Option(
        "--param", metavar="NAME=FILE",
        help="A weight, as .npy; those that the model does not bring are random.",
    ),
]  # fmt: skip
Sizes = Annotated[
    list[str] | None,
    typer.Option("--dim", metavar="NAME=SIZE", help="The size of a named dim of random inputs."),
]
Seed = Annotated[int, typer.Option("--seed", min=0, help="Of random inputs.")]


def pairs(given: list[str] | None, option: str) -> dict[str, str]:
    """NAME=VALUE, by name."""
    found: dict[str, str] = {}
    for text in given or ():
        name, _, value = text.rpartition("=")
        if not name or not value:
            raise typer.BadParameter(f"{text!r} is not NAME=VALUE", param_hint=option)
        found[name] = value
    return found


def sizes_of(given: list[str] | None) -> dict[str, int]:
    """NAME=SIZE, by name."""
    found = pairs(given, "--dim")
    for name, value in found.items():
        if not value.isdecimal():
            raise typer.BadParameter(f"{name}={value} is not NAME=SIZE", param_hint="--dim")
    return {name: int(value) for name, value in found.items()}


def mesh_of(given: str | None) -> dict[str, int] | None:
    """NAME=DEVICES,NAME=DEVICES, by name."""
    if given is None:
        return None
    found = pairs(given.split(","), "--mesh")
    for name, value in found.items():
        if not value.isdecimal():
            raise typer.BadParameter(f"{name}={value} is not AXIS=DEVICES", param_hint="--mesh")
    return {name: int(value) for name, value in found.items()}


def print_json(value: Mapping[str, Any]) -> None:
    print(json.dumps(value, indent=2))


@contextmanager
def reading() -> Generator[None]:
    """A file that cannot be read is the caller's to mend; what rlx lacks, or does wrong, is not."""
    try:
        yield
    except (InternalError, OutOfMemoryError, UnsupportedError):
        raise
    except Error as error:
        raise error if isinstance(error, InputError) else InputError(str(error)) from error


def read_text(path: str) -> str:
    """The text of a file."""
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read: {reason(error)}") from None


def write_text(path: str, text: str) -> None:
    with writing(path) as file:
        file.write(text.encode())
