"""ImageDecoder: the bytes of an image file as pixels, by Pillow."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from io import BytesIO
from typing import Any

import numpy as np

from rlx.core.dtype import DType
from rlx.core.errors import GraphError
from rlx.frontends.onnx.handlers import handles
from rlx.frontends.onnx.host_calls import Result, on_host
from rlx.frontends.onnx.node_call import Call
from rlx.frontends.onnx.strings import Strings
from rlx.frontends.onnx.values import Value

Array = np.ndarray[Any, Any]
MODES = {"RGB": "RGB", "BGR": "RGB", "Grayscale": "L"}
"""`pixel_format` → what Pillow calls it."""
MOST_PIXELS = 1 << 28
"""A file of a few bytes may claim to be of any size."""


@handles("ImageDecoder")
def decode(call: Call) -> Value:
    """[height, width, channels] of bytes; how large an image is, is in its file."""
    form = call.attr("pixel_format", "RGB")
    if form not in MODES:
        raise GraphError(f"{call.label}: pixel_format {form[:40]!r} is not one ONNX has")
    if find_spec("PIL") is None:
        raise call.refused("image files are decoded by Pillow: pip install 'rlx[images]'")
    result = Result(DType.U8, (None, None, 1 if form == "Grayscale" else 3))
    why = "it decodes an image file, by Pillow"
    return on_host(call, _pixels, [call.value(0)], [result], why, form=form)[0]


def _pixels(strings: Strings, data: Array, form: str) -> tuple[Array]:
    """No pixels where the file cannot be decoded: so ONNX has it."""
    Image: Any = import_module("PIL.Image")
    try:
        with Image.open(BytesIO(data.tobytes())) as image:
            if image.width * image.height > MOST_PIXELS:
                raise ValueError(f"{image.width} × {image.height} pixels")
            made = np.asarray(image.convert(MODES[form]))
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError):
        made = np.zeros((0, 0), np.uint8)
    pixels = made.reshape(*made.shape[:2], 1 if form == "Grayscale" else 3)
    return (pixels[:, :, ::-1] if form == "BGR" else pixels,)
