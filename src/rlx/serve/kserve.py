"""Models of tensors by KServe's protocol, version 2: /v2/models/NAME/infer."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from rlx._version import __version__
from rlx.ops.op import Array
from rlx.runtime.executable import Executable
from rlx.serve.body import Fields, parsed, read_body
from rlx.serve.errors import LEFT, Refused
from rlx.serve.responses import unless_left
from rlx.serve.settings import Settings
from rlx.serve.tensors import Binary, array_of, described, tensor_of
from rlx.serve.turns import Turns

HEADER = "inference-header-content-length"
VERSION = "1"


class TensorModel:
    """The routes of one model. Calls run in threads, so many at once; others wait for those."""

    def __init__(self, executable: Executable, settings: Settings, calls: int) -> None:
        self._exe, self._settings = executable, settings
        self._calls = Turns(calls, settings.queue)
        self.is_draining = False

    @property
    def waiting(self) -> int:
        return self._calls.waiting

    @property
    def routes(self) -> list[Route]:
        found: list[Route] = [
            Route("/v2", self.server),
            Route("/v2/health/live", self.live),
            Route("/v2/health/ready", self.ready),
        ]
        # a name may have slashes: the shortest path comes last
        for at in ("/v2/models/{name:path}/versions/{version}", "/v2/models/{name:path}"):
            found += [
                Route(f"{at}/ready", self.model_ready),
                Route(f"{at}/infer", self.infer, methods=["POST"]),
                Route(at, self.metadata),
            ]
        return found

    async def server(self, request: Request) -> Response:
        del request
        extensions = ["binary_tensor_data"]
        return JSONResponse({"name": "rlx", "version": __version__, "extensions": extensions})

    async def live(self, request: Request) -> Response:
        del request
        return JSONResponse({"live": True})

    async def ready(self, request: Request) -> Response:
        del request
        return JSONResponse({"ready": not self.is_draining}, 503 if self.is_draining else 200)

    async def model_ready(self, request: Request) -> Response:
        self._check(request)
        return await self.ready(request)

    async def metadata(self, request: Request) -> Response:
        self._check(request)
        kinds = {"inputs": self._exe.inputs, "outputs": self._exe.outputs}
        listed = {kind: [described(n, s) for n, s in v.items()] for kind, v in kinds.items()}
        head = {"name": self._settings.name, "versions": [VERSION], "platform": "rlx"}
        return JSONResponse({**head, **listed})

    async def infer(self, request: Request) -> Response:
        self._check(request)
        fields, binary = await self._read(request)
        given: dict[str, Array] = {}
        for tensor in _tensors(fields, "inputs"):
            name = tensor.text("name")
            if name in given:
                raise Refused(400, f"there are two inputs {name[:80]!r}.")
            given[name] = array_of(tensor, binary)
        binary.check_empty()
        asked = _asked(fields)
        async with asyncio.timeout(self._settings.timeout_s):
            made = await unless_left(request, self._run(given, list(asked) or None))
        return Response(status_code=LEFT) if made is None else self._answer(fields, made, asked)

    def _check(self, request: Request) -> None:
        name, version = request.path_params["name"], request.path_params.get("version", VERSION)
        if name != self._settings.name or version != VERSION:
            raise Refused(404, f"there is no such model: this server has {self._settings.name!r}.")

    async def _read(self, request: Request) -> tuple[Fields, Binary]:
        data = await read_body(request, self._settings.max_body_bytes, self._settings.stall_s)
        stated = request.headers.get(HEADER)
        if stated is None:
            return Fields(parsed(data)), Binary(b"")
        if not stated.isdecimal() or int(stated) > len(data):
            raise Refused(400, f"{HEADER} is not the size of the JSON.")
        return Fields(parsed(data[: int(stated)])), Binary(data[int(stated) :])

    async def _run(
        self, given: Mapping[str, Array], outputs: list[str] | None
    ) -> Mapping[str, Any]:
        if self.is_draining:
            raise Refused(503, "the server is shutting down.")
        await self._calls.acquire()
        # a call goes on to its end though its client leave, and is counted as long
        call = asyncio.ensure_future(asyncio.to_thread(self._exe.run, given, outputs))
        call.add_done_callback(self._done)
        return await asyncio.shield(call)

    def _done(self, call: asyncio.Future[Any]) -> None:
        self._calls.release()
        if not call.cancelled():
            call.exception()  # noted, also where nobody waits for it

    def _answer(
        self, fields: Fields, made: Mapping[str, Any], asked: Mapping[str, bool]
    ) -> Response:
        whole = fields.fields("parameters").flag("binary_data_output")
        tensors = [tensor_of(n, a, is_binary=asked.get(n, whole)) for n, a in made.items()]
        head: dict[str, Any] = {"model_name": self._settings.name, "model_version": VERSION}
        if fields.has("id"):
            head["id"] = fields.text("id")
        body = {**head, "outputs": [t for t, _ in tensors]}
        behind = b"".join(data for _, data in tensors)
        if not any("parameters" in t for t, _ in tensors):
            return JSONResponse(body)
        front = json.dumps(body).encode()
        headers = {HEADER: str(len(front))}
        return Response(front + behind, media_type="application/octet-stream", headers=headers)


def _tensors(fields: Fields, kind: str) -> list[Fields]:
    return [Fields(t, f"one of {kind}") for t in fields.items(kind)]


def _asked(fields: Fields) -> dict[str, bool]:
    """The outputs that are asked for, and whether each comes as bytes."""
    whole = fields.fields("parameters").flag("binary_data_output")
    return {
        t.text("name"): t.fields("parameters").flag("binary_data", whole)
        for t in _tensors(fields, "outputs")
    }
