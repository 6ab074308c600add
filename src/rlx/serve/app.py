"""Routes as an ASGI application."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles

from rlx.core.errors import Error
from rlx.lm.model import LanguageModel
from rlx.runtime.executable import Executable
from rlx.serve.chat import Chat
from rlx.serve.completions import Completions, Served
from rlx.serve.embeddings import Embeddings
from rlx.serve.errors import Refused, respond
from rlx.serve.guard import Guard
from rlx.serve.kserve import TensorModel
from rlx.serve.metrics import Metrics
from rlx.serve.models import Models
from rlx.serve.runner import Runner
from rlx.serve.settings import Settings

PAGE = Path(__file__).parent / "page"
HANDLED = (Refused, Error, HTTPException, TimeoutError, Exception)
Respond = Callable[[Request], Awaitable[Response]]


def language_model_app(lm: LanguageModel, settings: Settings) -> Starlette:
    """A language model by OpenAI's protocol."""
    metrics = Metrics()
    runner = Runner(lm.engine, metrics, settings.queue)
    served = Served(lm, runner, settings)
    models = Models(lm, settings, int(time.time()))
    metrics.gauge("rlx_slots", "Slots", lambda: lm.engine.load.slots)
    metrics.gauge("rlx_running", "Answers in the making", lambda: lm.engine.load.running)
    metrics.gauge("rlx_waiting", "Requests that wait", lambda: lm.engine.load.waiting)

    async def health(request: Request) -> Response:
        del request
        load = lm.engine.load
        state = "shutting down" if runner.is_draining else "ok"
        found = {"status": state, "slots": load.slots, "running": load.running}
        code = 503 if runner.is_draining else 200
        return JSONResponse({**found, "waiting": load.waiting}, code)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncGenerator[None]:
        app.state.drain = lambda: setattr(runner, "is_draining", True)
        runner.start()
        yield
        runner.stop()

    routes = [
        Route("/", _index),
        Mount("/page", StaticFiles(directory=PAGE)),
        Route("/health", health),
        Route("/v2/health/live", health),
        Route("/v2/health/ready", health),
        *_posts({
            "/v1/chat/completions": Chat(served).respond,
            "/v1/completions": Completions(served).respond,
            "/v1/embeddings": Embeddings(served).respond,
            "/tokenize": models.tokenized,
            "/detokenize": models.detokenized,
        }),
        Route("/v1/models", models.listed),
        Route("/v1/models/{name:path}", models.one),
    ]  # fmt: skip
    return application(routes, settings, metrics, lifespan)


def tensor_model_app(executable: Executable, settings: Settings, calls: int) -> Starlette:
    """A model of tensors by KServe's protocol; so many calls at once."""
    metrics = Metrics()
    model = TensorModel(executable, settings, calls)
    metrics.gauge("rlx_waiting", "Calls that wait", lambda: model.waiting)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncGenerator[None]:
        app.state.drain = lambda: setattr(model, "is_draining", True)
        yield

    routes = [Route("/health", model.ready), *model.routes]
    return application(routes, settings, metrics, lifespan)


def application(
    routes: Sequence[BaseRoute], settings: Settings, metrics: Metrics, lifespan: Any
) -> Starlette:
    """Routes behind what all requests pass, and errors in one shape."""
    guards = [Middleware(Guard, settings=settings, metrics=metrics)]
    if settings.origins:
        how: dict[str, Any] = {"allow_methods": ["*"], "allow_headers": ["*"]}
        guards = [Middleware(CORSMiddleware, allow_origins=settings.origins, **how), *guards]
    return Starlette(
        routes=[*routes, Route("/metrics", metrics.respond)],
        middleware=guards,
        lifespan=lifespan,
        exception_handlers=dict.fromkeys(HANDLED, respond),
    )


def _posts(routes: dict[str, Respond]) -> list[Route]:
    return [Route(path, to, methods=["POST"]) for path, to in routes.items()]


async def _index(request: Request) -> Response:
    del request
    return FileResponse(PAGE / "index.html")
