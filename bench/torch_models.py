"""Models of PyTorch that `bench.torch` times: architectures at the sizes people run, with random
weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Made = tuple[Any, tuple[Any, ...]]
"""A module, and the arguments of a call."""


def _mlp() -> Made:
    import torch
    from torch import nn

    net = nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 256))
    return net, (torch.randn(64, 256),)


def _encoder() -> Made:
    import torch
    from torch import nn

    layer = nn.TransformerEncoderLayer(256, 4, 1024, batch_first=True, activation="gelu")
    torch.backends.mha.set_fastpath_enabled(False)
    net = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
    return net, (torch.randn(1, 128, 256),)


def _vision(name: str, side: int, **options: Any) -> Callable[[], Made]:
    def make() -> Made:
        import torch

        from tests.torch import vision

        return getattr(vision, name)(**options), (torch.randn(1, 3, side, side),)

    return make


def _picked(
    kind: str, config: dict[str, Any], argument: str, inputs: Callable[[], Any], **fixed: Any
) -> Callable[[], Made]:
    """A model of transformers as a function of one tensor that gives one."""

    def make() -> Made:
        import transformers

        from tests.torch.architectures import Picked

        made = getattr(transformers, f"{kind}Config")(**config)
        net = Picked(getattr(transformers, f"{kind}Model")(made), "last_hidden_state", **fixed)
        net.names = (argument,)
        return net, (inputs(),)

    return make


def _whisper() -> Made:
    import torch
    from transformers import WhisperConfig
    from transformers.models.whisper.modeling_whisper import WhisperEncoder

    from tests.torch.architectures import Picked

    made = WhisperConfig(d_model=512, encoder_layers=6, encoder_attention_heads=8,
                         encoder_ffn_dim=2048, num_mel_bins=80)  # fmt: skip
    net = Picked(WhisperEncoder(made), "last_hidden_state")
    net.names = ("input_features",)
    return net, (torch.randn(1, 80, 3000),)


def _ids(length: int) -> Callable[[], Any]:
    def make() -> Any:
        import torch

        return torch.randint(3, 990, (1, length))

    return make


def _image(side: int) -> Callable[[], Any]:
    def make() -> Any:
        import torch

        return torch.randn(1, 3, side, side)

    return make


LLAMA = {
    "vocab_size": 1000, "hidden_size": 512, "intermediate_size": 1536, "num_hidden_layers": 8,
    "num_attention_heads": 8, "num_key_value_heads": 4,
}  # fmt: skip
MODELS: dict[str, Callable[[], Made]] = {
    "MLP 256×1024, batch 64": _mlp,
    "encoder 4×256, 128 tokens": _encoder,
    "BERT-base, 128 tokens": _picked("Bert", {"vocab_size": 1000}, "input_ids", _ids(128)),
    "GPT-2 124M, 64 tokens": _picked(
        "GPT2", {"vocab_size": 1000, "bos_token_id": 1, "eos_token_id": 2}, "input_ids", _ids(64),
        use_cache=False,
    ),
    "Llama 8×512, 64 tokens": _picked("Llama", LLAMA, "input_ids", _ids(64), use_cache=False),
    "Whisper-base encoder, 30 s": _whisper,
    "ViT-B/16, 224²": _picked("ViT", {}, "pixel_values", _image(224)),
    "Swin-T, 224²": _picked("Swin", {}, "pixel_values", _image(224)),
    "ConvNeXt-T, 224²": _picked("ConvNext", {}, "pixel_values", _image(224)),
    "ResNet-50, 224²": _picked("ResNet", {}, "pixel_values", _image(224)),
    "MobileNetV3, 224²": _vision("MobileNetV3", 224),
    "EfficientNet, 224²": _vision("EfficientNet", 224),
    "U-Net, 128²": _vision("UNet", 128, widths=(32, 64, 128)),
    "YOLO, 320²": _vision("Yolo", 320),
    "ResNet (8 blocks), 64²": _vision("ResNet", 64),
    "Swin (4 blocks), 32²": _vision("Swin", 32),
}  # fmt: skip


def tiny() -> dict[str, tuple[Callable[[Any], Any], Any]]:
    """Calls of a tiny model: the program on arrays and on tensors, and what Dynamo costs."""
    import copy

    import torch
    from torch import nn
    from torch._dynamo.backends.common import aot_autograd

    import rlx
    from rlx.frontends.torch.dynamo.backend import rlx as backend

    net = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4)).eval()
    x, result = torch.randn(1, 16), [torch.zeros(1, 4)]

    def constant(module: Any, inputs: Any) -> Any:
        return lambda *given: result

    def boxed(module: Any, inputs: Any) -> Any:
        made = lambda given: result
        made._boxed_call = True  # pyright: ignore[reportFunctionMemberAccess]
        return made

    aot = aot_autograd(fw_compiler=boxed, inference_compiler=boxed)
    exported = rlx.compile(net, (x,), target="cpu", threads=2)
    made: dict[str, tuple[Callable[[Any], Any], Any]] = {
        "exported, on NumPy arrays": (exported.executable, x.numpy()),
        "exported, on tensors": (exported, x),
        "eager": (net, x),
    }
    backends = {
        "Dynamo with a constant result": constant,
        "Dynamo and AOTAutograd with a constant result": aot,
        '`torch.compile(backend="rlx")`': backend,
    }
    for name, kind in backends.items():
        made[name] = torch.compile(copy.deepcopy(net), backend=kind), x
        made[name][0](x)
    return made
