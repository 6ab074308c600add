"""`rlx compile MODEL -o FILE`: a program that starts without compiling."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from rlx.cli import options
from rlx.core.printable import one_line

if TYPE_CHECKING:
    from rlx.cli.inputs import Wanted
    from rlx.ir.lir import LirModule
    from rlx.runtime.executable import Executable


class Emit(enum.Enum):
    """What is written."""

    PROGRAM = "program"
    LIR = "lir"


class Engine(enum.Enum):
    """What computes in a browser."""

    WEBGPU = "webgpu"
    WASM = "wasm"


EXAMPLE = "rlx compile model.onnx -o model.rlx"


def verb(
    model: options.ModelFile,
    output: Annotated[
        str | None,
        typer.Option(
            "--output", "-o", metavar="FILE", help="(default: the model's name, .rlx or .lir)"
        ),
    ] = None,
    target: options.RunOn = None,
    tune: options.Tuning = "bitwise",
    f64: options.Doubles = None,
    mesh: options.Mesh = None,
    emit: Annotated[
        Emit, typer.Option("--emit", help="Native code, or the planned module as text.")
    ] = Emit.PROGRAM,
    has_weights: Annotated[
        bool, typer.Option("--weights/--no-weights", help="Put the weights into the file.")
    ] = True,
    dump: Annotated[
        str | None,
        typer.Option("--dump", metavar="FOLDER", help="Write the IR after each pass there."),
    ] = None,
    web: Annotated[
        str | None,
        typer.Option(
            "--web", metavar="FOLDER", help="With -t wgpu: write a folder that browsers run."
        ),
    ] = None,
    has_f16: Annotated[
        bool,
        typer.Option("--f16/--no-f16", help="With --web: count on adapters with shader-f16."),
    ] = False,
    engine: Annotated[
        Engine | None,
        typer.Option("--engine", help="With --web: this engine alone. (default: both)"),
    ] = None,
    files: options.InputFiles = None,
    dims: options.Sizes = None,
    seed: options.Seed = 0,
    is_json: options.Json = False,
) -> int:
    """Compile a model, and write the program to a file.

    rlx.load opens it without compiling, on machines with the same instruction set or GPU. It holds
    machine code: load only one that you would run. Weights that the model does not bring, as
    those of .ir text, are not in it: set_params gives them. Where shapes follow from the inputs, it
    is a program for inputs like those given, or made up.

    With --emit lir it is the plan of any target, also of one that is not here: the final graph and
    the offset of every buffer, as text. rlx.load reads it and checks it again.

    With -t tpu:v5e, or another TPU that is not here, the size of code and memory is printed; the
    file runs on TPUs, and on jax's CPU.

    With --web it is a folder for browsers, which needs no GPU here: kernels in WGSL, WebAssembly
    for where there is no WebGPU, the weights, ES modules that run them, and a page that does.
    --dim names the sizes that it is prepared for when it loads.
    """
    from rlx.cli import inputs, models
    from rlx.core.errors import InputError
    from rlx.frontends.files import save

    path = Path(output or f"{Path(model).stem}.{'lir' if emit is Emit.LIR else 'rlx'}")
    if not path.parent.is_dir():
        raise InputError(f"{path} cannot be written: there is no folder {path.parent}. Make it.")
    wanted, axes = inputs.Wanted.of(files, None, dims, seed), options.mesh_of(mesh)
    if web is not None or has_f16 or engine:
        return _exported(model, web, target, wanted, has_f16, engine, is_json, f64)
    if emit is Emit.LIR:
        result, *_ = models.planned(model, target or "cpu", wanted, dump, f64, axes)
        save(result.lir, path)
        _tell_plan(model, path, result.lir, is_json)
        return 0
    exe = models.program(model, target, None, dump=dump, tune=tune, f64=f64, mesh=axes)
    if not exe.programs:
        exe.settled(inputs.inputs_of(exe, wanted).arrays)
    is_whole = has_weights and not exe.missing_params
    exe.save(path, weights=is_whole)
    _tell(model, path, exe, is_whole, is_json)
    return 0


def _exported(
    model: str,
    web: str | None,
    target: str | None,
    wanted: Wanted,
    has_f16: bool,
    engine: Engine | None,
    is_json: bool,
    f64: Literal["f32"] | None,
) -> int:
    from rlx.cli import inputs, models
    from rlx.frontends.web import ENGINES, export_web
    from rlx.passes.options import FusionOptions

    if web is None or target != "wgpu":
        raise typer.BadParameter("a folder for browsers is of target wgpu: -t wgpu --web FOLDER")
    found, params, made_up = models.with_weights(model, wanted)
    how = FusionOptions(sizes=dict(wanted.sizes), f64=f64)
    engines = (engine.value,) if engine else ENGINES
    made = export_web(found, web, params=params, options=how, has_f16=has_f16, engines=engines)
    if is_json:
        facts = {"model": model, "folder": web, "bytes": made.num_bytes, "files": dict(made.files)}
        more = {"refused": dict(made.refused), "made_up": inputs.made_up_facts(made_up)}
        options.print_json({**facts, **more})
        return 0
    for name, size in made.files.items():
        print(f"{size:>12,} {name}")
    for name, reason in made.refused.items():
        print(f"not for {name}: {reason}")
    if made_up is not None:
        print("the model is another for other inputs: the folder is for those of these shapes")
        inputs.print_made_up(made_up)
    print(f"wrote {web}: {made.num_bytes:,} bytes. Serve it: python -m http.server -d {web}")
    return 0


def _tell_plan(model: str, path: Path, lir: LirModule, is_json: bool) -> None:
    size = path.stat().st_size
    facts = {"model": model, "file": str(path), "bytes": size, **_plan_facts(lir)}
    if is_json:
        options.print_json(facts)
        return
    print(f"wrote {path}: {size:,} bytes, {facts['kernels']} kernels for {facts['target']}")


def _plan_facts(lir: LirModule) -> dict[str, Any]:
    return {
        "target": lir.target.name, "kernels": len(lir.plan.schedule),
        "arena_bytes": lir.arena_bytes, "weight_bytes": lir.plan.weight_bytes,
        "fingerprint": lir.fingerprint,
    }  # fmt: skip


def _tell(model: str, path: Path, exe: Executable, is_whole: bool, is_json: bool) -> None:
    plan, size = exe.lir.plan, path.stat().st_size
    facts = {
        "model": model, "file": str(path), "bytes": size, "has_weights": is_whole,
        **_plan_facts(exe.lir),
        "inputs": {k: str(v) for k, v in exe.inputs.items()},
        "outputs": {k: str(v) for k, v in exe.outputs.items()},
    }  # fmt: skip
    code = exe.code_facts() if exe.backend.is_compile_only else None
    facts |= {"compiled": code.to_dict()} if code else {}
    if is_json:
        options.print_json(facts)
        return
    for kind, shapes in (("in ", exe.inputs), ("out", exe.outputs)):
        for name, shape in shapes.items():
            print(kind, f"{one_line(name)}: {shape}")
    weights = "with weights" if is_whole else "without weights"
    if code:
        print(code)
    print(f"wrote {path}: {size:,} bytes, {len(plan.schedule)} kernels, {weights}")
