"""/v1/embeddings: vectors of texts."""

from __future__ import annotations

import asyncio
import base64
from typing import Any

import numpy as np
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from rlx.ops.op import Array
from rlx.serve.body import Fields
from rlx.serve.completions import Served, gone
from rlx.serve.errors import Refused
from rlx.serve.prompts import given_prompts, tokens_of
from rlx.serve.responses import unless_left
from rlx.serve.sampling import check_model
from rlx.serve.turns import Turns

KNOWN = ("input", "model", "encoding_format", "dimensions", "user")
MAX_TEXTS = 2048
"""As OpenAI has it: clients send thousands in parts of so many."""


class Embeddings:
    """The route. One text after the other is computed, beside the answers of the engine."""

    def __init__(self, served: Served) -> None:
        self._served = served
        self._turns = Turns(1, served.settings.queue)

    async def respond(self, request: Request) -> Response:
        fields = await self._served.fields(request)
        fields.only(KNOWN)
        check_model(fields, self._served.settings)
        kind = fields.text("encoding_format", "float")
        if kind not in ("float", "base64"):
            text = "'encoding_format' must be float or base64."
            raise Refused(400, text, param="encoding_format")
        given = given_prompts(fields, "input", MAX_TEXTS)
        prompts = await asyncio.to_thread(tokens_of, self._served.lm, given)
        async with asyncio.timeout(self._served.settings.timeout_s):
            made = await unless_left(request, self._embedded(prompts))
        if made is None:
            return gone()
        _check_dimensions(fields, len(made[0]))
        count = sum(map(len, prompts))
        data = [_item(i, v, kind) for i, v in enumerate(made)]
        usage = {"prompt_tokens": count, "total_tokens": count}
        name = self._served.settings.name
        return JSONResponse({"object": "list", "data": data, "model": name, "usage": usage})

    async def _embedded(self, prompts: list[list[int]]) -> list[Array]:
        async with self._turns:
            return [await asyncio.to_thread(self._served.lm.embed, p) for p in prompts]


def _check_dimensions(fields: Fields, width: int) -> None:
    if fields.integer("dimensions", width, 1, 1 << 31) != width:
        raise Refused(400, f"this model's vectors have {width} dimensions.", param="dimensions")


def _item(index: int, vector: Array, kind: str) -> dict[str, Any]:
    data = base64.b64encode(vector.astype("<f4").tobytes()).decode()
    values = data if kind == "base64" else [float(v) for v in np.asarray(vector, np.float32)]
    return {"object": "embedding", "index": index, "embedding": values}
