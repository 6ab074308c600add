"""`rlx run FILE`: run a model once, and say what it gives."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np

from rlx.cli import inputs
from rlx.errors import Error
from rlx.loading import load
from rlx.op import Array
from rlx.runtime.executable import Executable
from rlx.runtime.session import Session


def main(arguments: list[str]) -> int:
    """Prints shapes, dtypes and ranges of inputs and outputs."""
    parser = argparse.ArgumentParser(
        "rlx run",
        description="Runs a model once, on given or random inputs, and prints the shapes, dtypes "
        "and ranges of what goes in and comes out.",
        epilog="example: rlx run model.onnx --input x=x.npy --output results",
    )
    parser.add_argument("model", help="an .onnx, .ir or .rlx file")
    parser.add_argument("--target", help="such as cpu or reference (native code, if it is there)")
    parser.add_argument("--threads", type=positive, help="cores that the call may use (all)")
    parser.add_argument("--output", metavar="FOLDER", help="write each output there, as .npy")
    inputs.add_options(parser)
    args = parser.parse_args(arguments)
    exe = compiled(args)
    given = inputs.inputs_of(exe, args)
    made = exe.run(given)
    for kind, arrays in (("in ", given), ("out", made)):
        for name, array in arrays.items():
            print(kind, inputs.described(name, array))
    if args.output:
        _write(Path(args.output), made)
    return 0


def positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of at least 1")
    return int(text)


def compiled(args: argparse.Namespace) -> Any:
    """The model of a file, ready to run."""
    model = load(args.model, threads=args.threads)
    if isinstance(model, Executable):
        return model
    return Session(args.target, threads=args.threads).compile(model)


def _write(folder: Path, made: dict[str, Array]) -> None:
    """Names of outputs may be no names of files: those are numbered."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, (name, array) in enumerate(made.items()):
        is_plain = name.replace("_", "").replace("-", "").isalnum() and len(name) < 100
        path = folder / f"{name if is_plain else f'output_{number}'}.npy"
        try:
            np.save(path, array, allow_pickle=False)
        except (OSError, ValueError) as error:
            raise Error(f"{path} cannot be written: {error}") from None
        print(f"wrote {path}")
