"""Image files as pixels: a host step before the program that works on them."""

from __future__ import annotations

from io import BytesIO
from typing import Any

import numpy as np
import pytest
from onnx import parser

import rlx
from rlx.core.errors import UnsupportedError
from rlx.frontends.onnx.handlers.nn import image_decoder as images
from rlx.frontends.onnx.model import from_proto

TEXT = """<ir_version: 10, opset_import: ["" : 20]>
g (uint8[n] file) => (float[h, w, c] y) {
    pixels = ImageDecoder <pixel_format = "%s"> (file)
    y = Cast <to = 1> (pixels)
}"""
PIXELS = np.arange(5 * 7 * 3, dtype=np.uint8).reshape(5, 7, 3) * 2


def compiled(form: str) -> Any:
    return rlx.compile(from_proto(parser.parse_model(TEXT % form)))


def test_one_program_for_images_of_any_size() -> None:
    image = pytest.importorskip("PIL.Image", reason="image files are decoded by Pillow")
    exe = compiled("BGR")
    for pixels in (PIXELS, PIXELS[:2, :3]):
        file = BytesIO()
        image.fromarray(pixels).save(file, format="png")
        made = exe(np.frombuffer(file.getvalue(), np.uint8))
        np.testing.assert_array_equal(made, pixels[:, :, ::-1].astype(np.float32))
    assert len(exe.programs) == 1
    assert [d.where for d in exe.decisions if d.what == "host_step"] == [("pixels",)]


def test_what_is_no_image_has_no_pixels() -> None:
    """As ONNX has it."""
    pytest.importorskip("PIL.Image", reason="image files are decoded by Pillow")
    assert compiled("Grayscale")(np.arange(20, dtype=np.uint8)).shape == (0, 0, 1)


def test_without_pillow_it_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "find_spec", lambda _: None)
    with pytest.raises(UnsupportedError, match=r"ImageDecoder 'pixels'.*rlx\[images\]"):
        compiled("RGB")
