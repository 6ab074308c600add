"""Models of Hugging Face's transformers: exported with inputs that follow from their config."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any

from rlx.core.errors import Error
from rlx.core.public_calls import public
from rlx.frontends.torch.export import exported_model, is_module
from rlx.frontends.torch.namespaces import torch
from rlx.frontends.torch.program import TorchProgram
from rlx.runtime.session import Session

SEQUENCES = ("input_ids", "attention_mask", "token_type_ids", "decoder_input_ids", "input_values")
"""Inputs whose second axis is a length that varies."""
OF_SESSION = ("like", "threads", "device", "cache", "dump", "tune")


@public
def from_pretrained(
    model: Any, inputs: Mapping[str, Any] | None = None, *, target: Any = None, **options: Any
) -> TorchProgram:
    """Compile a model of transformers, or the one in a folder, for any batch and length: it is
    called as the model is, by keyword, and gives its outputs without a cache. `inputs` are examples
    of what calls give, where those that follow from the config will not do; the other options are
    those of `rlx.compile`."""
    module = _model(model)
    given = dict(inputs) if inputs is not None else example_inputs(module)
    shapes = {name: _axes(name, value) for name, value in given.items()}
    with _without_cache(module):
        made = exported_model(module.eval(), (), given, shapes)
    of_session = {k: options.pop(k) for k in OF_SESSION if k in options}
    return Session(target, **of_session).compile(made, **options)


def _model(model: Any) -> Any:
    if isinstance(model, str):
        try:
            from transformers import AutoModel  # pyright: ignore[reportMissingImports]
        except ImportError:
            raise Error(
                "models by name are read by transformers: pip install transformers."
            ) from None
        return AutoModel.from_pretrained(model)
    if not is_module(model) or not hasattr(model, "config"):
        kind = type(model).__name__
        raise Error(f"from_pretrained takes a model of transformers, got {kind}. Use rlx.compile.")
    return model


def _axes(name: str, value: Any) -> dict[int, Any] | None:
    if not isinstance(value, torch.Tensor):
        return None
    auto = torch.export.Dim.AUTO
    return {0: auto, 1: auto} if name in SEQUENCES else {0: auto}


@contextmanager
def _without_cache(module: Any) -> Generator[None]:
    """Results are those of one call: no keys and values for the next."""
    config = module.config
    before = getattr(config, "use_cache", None)
    if before is not None:
        config.use_cache = False
    try:
        yield
    finally:
        if before is not None:
            config.use_cache = before


def example_inputs(module: Any) -> dict[str, Any]:
    """Inputs of a batch of two, by what the model's main input is."""
    main = getattr(module, "main_input_name", "input_ids")
    config = module.config
    ids = torch.full((2, 8), 3, dtype=torch.int64)
    match main:
        case "input_ids":
            found = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        case "pixel_values":
            found = {"pixel_values": _image(config)}
        case "input_values":
            found = {"input_values": torch.zeros(2, 4000)}
        case "input_features":
            frames = 2 * config.max_source_positions
            found = {"input_features": torch.zeros(2, config.num_mel_bins, frames)}
        case _:
            raise Error(f"{type(module).__name__} takes {main!r}. Give examples: inputs={{...}}.")
    if getattr(config, "is_encoder_decoder", False):
        found["decoder_input_ids"] = ids
    return found


def _image(config: Any) -> Any:
    size = getattr(config, "image_size", 224)
    height, width = size if isinstance(size, list | tuple) else (size, size)
    return torch.zeros(2, getattr(config, "num_channels", 3), height, width)
