"""`rlx run MODEL`: run a model once, and say what it gives."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rlx.cli import options

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rlx.ops.op import Array

EXAMPLE = "rlx run model.onnx --input x=x.npy --output results"


def verb(
    model: options.ModelFile,
    target: options.RunOn = None,
    threads: options.Threads = None,
    tune: options.Tuning = "bitwise",
    f64: options.Doubles = None,
    mesh: options.Mesh = None,
    output: Annotated[
        str | None,
        typer.Option("--output", "-o", metavar="FOLDER", help="Write each output there, as .npy."),
    ] = None,
    files: options.InputFiles = None,
    params: options.ParamFiles = None,
    dims: options.Sizes = None,
    seed: options.Seed = 0,
    is_json: options.Json = False,
) -> int:
    """Run a model once, on given or random inputs.

    Prints the shapes, dtypes and ranges of what goes in and comes out.
    """
    from rlx.cli import inputs, models

    wanted = inputs.Wanted.of(files, params, dims, seed)
    axes = options.mesh_of(mesh)
    exe = models.compiled(model, target, threads, wanted, tune=tune, f64=f64, mesh=axes)
    taken, made = inputs.ran(exe, wanted)
    given = taken.arrays
    written = _written(Path(output), made) if output else {}
    if is_json:
        kinds = {"inputs": given, "outputs": made}
        facts = {k: {n: inputs.facts_of(a) for n, a in v.items()} for k, v in kinds.items()}
        notes = {"made_up": list(taken.names), "files": written}
        options.print_json({"model": model, **facts, **notes})
        return 0
    for kind, arrays in (("in ", given), ("out", made)):
        for name, array in arrays.items():
            print(kind, inputs.described(name, array))
    inputs.print_made_up(taken)
    for path in written.values():
        print(f"wrote {path}")
    return 0


def _written(folder: Path, made: Mapping[str, Array]) -> dict[str, str]:
    """The file of each output. Their names may be no names of files: those are numbered."""
    import numpy as np

    from rlx.core.errors import InputError
    from rlx.core.files import reason, writing

    found: dict[str, str] = {}
    for number, (name, array) in enumerate(made.items()):
        is_plain = name.replace("_", "").replace("-", "").isalnum() and len(name) < 100
        path = folder / f"{name if is_plain else f'output_{number}'}.npy"
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except (OSError, ValueError) as error:
            raise InputError(f"{folder} cannot be written to: {reason(error)}") from None
        with writing(path) as file:
            held = BytesIO()  # NumPy asks a file for its position, which a pipe has none of
            np.save(held, array, allow_pickle=False)
            file.write(held.getbuffer())
        found[name] = str(path)
    return found
