"""`rlx serve`: a model over HTTP."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rlx.cli.options import LANGUAGE_MODEL, Activations, KvCache, RunOn, Threads, reading
from rlx.core.errors import InputError, UnsupportedError

if TYPE_CHECKING:
    from starlette.applications import Starlette

    from rlx.serve import Settings

EXAMPLE = "rlx serve model.gguf --port 8080"
TOKEN = "RLX_SERVE_TOKEN"


def verb(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help=f"{LANGUAGE_MODEL} Or another model.")
    ],
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="0: any that is free.", min=0, max=65535)] = 8080,
    name: Annotated[
        str | None, typer.Option(help="What clients call it. (default: the file's name)")
    ] = None,
    token: Annotated[
        str | None,
        typer.Option(help=f"The bearer token that clients must send. (default: ${TOKEN})"),
    ] = None,
    target: RunOn = None,
    threads: Threads = None,
    context: Annotated[
        int | None,
        typer.Option(help="Tokens of a prompt and its answer at most. (default: 4096)", min=16),
    ] = None,
    precision: Activations = "file",
    kv: KvCache = None,
    slots: Annotated[int, typer.Option(help="Answers, or calls, computed at once.", min=1)] = 8,
    queue: Annotated[int, typer.Option(help="Requests that wait at most.", min=1)] = 512,
    draft: Annotated[
        str | None,
        typer.Option(help="Guess tokens and verify them: lookup, or a smaller model's file."),
    ] = None,
    context_shift: Annotated[
        bool, typer.Option("--context-shift", help="Go on behind the end of the context.")
    ] = False,
    timeout: Annotated[float, typer.Option(help="Seconds for an answer.", min=1)] = 600.0,
    grace: Annotated[
        float, typer.Option(help="Seconds to finish answers in when it is ended.", min=1)
    ] = 30.0,
    max_body: Annotated[
        int | None,
        typer.Option(help="MiB of a request. (default: 8; 64 of tensors)", min=1),
    ] = None,
    cors: Annotated[
        list[str] | None, typer.Option(help="An origin whose pages may use it.")
    ] = None,
) -> int:  # fmt: skip
    """Serve a model over HTTP.

    A language model speaks OpenAI's protocol, and has a page to chat with; others speak
    KServe's, version 2.
    """
    _check_packages()
    from rlx.frontends.gguf.source import is_language_model_file
    from rlx.serve import Settings, run
    from rlx.serve.server import hosts_of

    speaks = is_language_model_file(Path(model))
    settings = Settings(
        name=name or Path(model).stem,
        token=token or os.environ.get(TOKEN) or None,
        queue=queue,
        timeout_s=timeout,
        context_shift=context_shift,
        max_body_bytes=(max_body or (8 if speaks else 64)) << 20,
        hosts=hosts_of(host),
        origins=tuple(cors or ()),
    )
    if speaks:
        how = {"context": context, "draft": draft, "threads": threads, "target": target}
        app = _language_model(model, settings, slots=slots, precision=precision, kv=kv, **how)
    else:
        app = _tensor_model(model, settings, slots, target, threads)
    run(app, host, port, grace_s=grace)
    return 0


def _language_model(path: str, settings: Settings, **how: Any) -> Starlette:
    from rlx import lm
    from rlx.serve import language_model_app

    with reading():
        made = lm.load(path, **how)
    return language_model_app(made, settings)


def _tensor_model(
    path: str, settings: Settings, calls: int, target: str | None, threads: int | None
) -> Starlette:
    from rlx.cli import models
    from rlx.serve import tensor_model_app

    executable = models.program(path, target, threads)
    if executable.missing_params:
        names = ", ".join(executable.missing_params[:3])
        raise InputError(
            f"{path} has no values of its weights ({names}): it cannot be served. "
            "Compile it with them."
        )
    return tensor_model_app(executable, settings, calls)


def _check_packages() -> None:
    try:
        import prometheus_client
        import starlette
        import uvicorn
    except ImportError as error:
        raise UnsupportedError(f"{error.name} is missing: pip install 'rlx[serve]'") from None
    del prometheus_client, starlette, uvicorn
