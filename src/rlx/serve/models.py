"""What a server has, and its tokenizer: /v1/models, /tokenize, /detokenize."""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from rlx.lm.model import LanguageModel
from rlx.serve.body import Fields, parsed, read_body
from rlx.serve.errors import Refused
from rlx.serve.sampling import SAMPLING, check_length, default_sampling
from rlx.serve.settings import Settings


class Models:
    """Routes that generate nothing."""

    def __init__(self, lm: LanguageModel, settings: Settings, started: int) -> None:
        self._lm, self._settings, self._started = lm, settings, started

    async def listed(self, request: Request) -> Response:
        del request
        return JSONResponse({"object": "list", "data": [self._described()]})

    async def one(self, request: Request) -> Response:
        if request.path_params["name"] != self._settings.name:
            raise Refused(404, "there is no such model.", param="model", code="model_not_found")
        return JSONResponse(self._described())

    def _described(self) -> dict[str, Any]:
        default = default_sampling(self._lm)
        return {
            "id": self._settings.name, "object": "model", "created": self._started,
            "owned_by": "rlx", "context_length": self._lm.context,
            "default_sampling": {name: getattr(default, name) for name in SAMPLING},
        }  # fmt: skip

    async def tokenized(self, request: Request) -> Response:
        fields = await self._fields(request)
        fields.only(("content", "add_special", "with_pieces", "model"))
        text = fields.text("content")
        check_length(self._lm, [text])
        begin = fields.flag("add_special")
        ids = await asyncio.to_thread(self._lm.tokenizer.encode, text, begin=begin)
        if not fields.flag("with_pieces"):
            return JSONResponse({"tokens": ids})
        texts = self._lm.tokenizer.texts
        return JSONResponse({"tokens": [{"id": i, "piece": texts[i]} for i in ids]})

    async def detokenized(self, request: Request) -> Response:
        fields = await self._fields(request)
        fields.only(("tokens", "model"))
        ids = fields.items("tokens")
        count = len(self._lm.tokenizer.texts)
        if not all(type(i) is int and 0 <= i < count for i in ids):
            raise Refused(400, f"'tokens' must be integers below {count:,}.", param="tokens")
        return JSONResponse({"content": self._lm.tokenizer.decode(ids).decode(errors="replace")})

    async def _fields(self, request: Request) -> Fields:
        settings = self._settings
        return Fields(parsed(await read_body(request, settings.max_body_bytes, settings.stall_s)))
