"""What an engine adds to a folder for browsers."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from rlx.backends.web.weights import WeightsFile
from rlx.ir.interface import Interface

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Part:
    """Files, and what `model.json` says of them."""

    interface: Interface
    facts: Json
    files: Mapping[str, bytes]


MakePart = Callable[[WeightsFile], Part]
"""Compiles a model for an engine and puts the bytes that it loads into a file of weights; an
UnsupportedError where the engine cannot run it."""


def json_bytes(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()
