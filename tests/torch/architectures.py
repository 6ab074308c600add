"""25 architectures with random weights: how each is made, and inputs of any batch and length."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from tests.torch import vision

Inputs = dict[str, Tensor]


@dataclass(frozen=True)
class Architecture:
    """A model, its inputs for a batch and a length, and the axes that vary."""

    name: str
    make: Callable[[], nn.Module]
    inputs: Callable[[int, int], Inputs]
    axes: dict[str, dict[int, str]]
    """Input → axis → the size that it is: batch or length."""
    lengths: tuple[int, ...] = (8,)
    """Lengths that are tried; one where it is fixed."""


class Picked(nn.Module):
    """A model of transformers as a function of its tensors in order that gives one tensor."""

    def __init__(self, model: nn.Module, result: str, **fixed: Any) -> None:
        super().__init__()
        self.model, self.result, self.fixed = model, result, fixed
        self.names: tuple[str, ...] = ()

    def forward(self, *inputs: Tensor) -> Tensor:
        named = dict(zip(self.names, inputs, strict=True))
        return getattr(self.model(**named, **self.fixed), self.result)


def config(name: str, **options: Any) -> Any:
    import transformers

    return getattr(transformers, name)(**options)


def model(name: str, made: Any) -> nn.Module:
    import transformers

    return getattr(transformers, name)(made)


def tokens(batch: int, length: int) -> Inputs:
    return {"input_ids": torch.randint(3, 90, (batch, length))}


def masked(batch: int, length: int) -> Inputs:
    mask = torch.ones(batch, length, dtype=torch.int64)
    if length > 4:
        mask[0, -2:] = 0
    return {**tokens(batch, length), "attention_mask": mask}


BOTH = {0: "batch", 1: "length"}
LENGTHS = (8, 5, 12, 17, 9)
ENCODER = {"vocab_size": 100, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
           "intermediate_size": 64, "max_position_embeddings": 64}  # fmt: skip
DECODER = {**ENCODER, "num_key_value_heads": 2, "head_dim": 8, "pad_token_id": 0}


def encoder(name: str, **options: Any) -> Architecture:
    def make() -> nn.Module:
        made = config(f"{name}Config", **{**ENCODER, **options})
        return Picked(model(f"{name}Model", made), "last_hidden_state")

    axes = {"input_ids": BOTH, "attention_mask": BOTH}
    return Architecture(name, make, masked, axes, LENGTHS)


def decoder(name: str, **options: Any) -> Architecture:
    def make() -> nn.Module:
        made = config(f"{name}Config", **{**DECODER, **options})
        return Picked(model(f"{name}ForCausalLM", made), "logits", use_cache=False)

    return Architecture(name, make, tokens, {"input_ids": BOTH}, LENGTHS)


def _distilbert() -> nn.Module:
    made = config("DistilBertConfig", vocab_size=100, dim=32, n_layers=2, n_heads=4, hidden_dim=64,
                  max_position_embeddings=64)  # fmt: skip
    return Picked(model("DistilBertModel", made), "last_hidden_state")


def _gpt2() -> nn.Module:
    made = config("GPT2Config", vocab_size=100, n_embd=32, n_layer=2, n_head=4, n_positions=64)
    return Picked(model("GPT2LMHeadModel", made), "logits", use_cache=False)


def _gemma3() -> nn.Module:
    made = config("Gemma3TextConfig", **DECODER, sliding_window=4)
    return Picked(model("Gemma3ForCausalLM", made), "logits", use_cache=False)


def _t5() -> nn.Module:
    made = config(
        "T5Config", vocab_size=100, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4
    )
    return Picked(model("T5Model", made), "last_hidden_state", use_cache=False)


def _whisper() -> nn.Module:
    made = config("WhisperConfig", vocab_size=100, d_model=32, encoder_layers=2, decoder_layers=2,
                  encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=64,
                  decoder_ffn_dim=64, num_mel_bins=16, max_source_positions=50,
                  max_target_positions=64, pad_token_id=0, bos_token_id=1, eos_token_id=2,
                  decoder_start_token_id=1)  # fmt: skip
    return Picked(model("WhisperModel", made), "last_hidden_state", use_cache=False)


def _vit() -> nn.Module:
    made = config("ViTConfig", hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
                  intermediate_size=64, image_size=32, patch_size=8)  # fmt: skip
    return Picked(model("ViTModel", made), "last_hidden_state")


def _clip() -> nn.Module:
    text = {
        **ENCODER,
        "projection_dim": 16,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
    }
    image = {
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 64,
        "image_size": 32,
        "patch_size": 8,
        "projection_dim": 16,
    }
    made = config("CLIPConfig", text_config=text, vision_config=image, projection_dim=16)
    return Picked(model("CLIPModel", made), "logits_per_image")


def _wav2vec2() -> nn.Module:
    made = config("Wav2Vec2Config", vocab_size=30, hidden_size=32, num_hidden_layers=2,
                  num_attention_heads=4, intermediate_size=64, conv_dim=(16, 16, 16),
                  conv_stride=(5, 2, 2), conv_kernel=(10, 3, 3), num_conv_pos_embeddings=16,
                  num_conv_pos_embedding_groups=4)  # fmt: skip
    return Picked(model("Wav2Vec2Model", made), "last_hidden_state")


def _mamba() -> nn.Module:
    made = config("MambaConfig", vocab_size=100, hidden_size=16, num_hidden_layers=2, state_size=4,
                  use_mambapy=False)  # fmt: skip
    return Picked(model("MambaForCausalLM", made), "logits", use_cache=False)


def _pairs(batch: int, length: int) -> Inputs:
    return {**tokens(batch, length), "decoder_input_ids": torch.randint(3, 90, (batch, length))}


def _speech(batch: int, length: int) -> Inputs:
    ids = torch.randint(3, 90, (batch, length))
    return {"input_features": torch.randn(batch, 16, 100), "decoder_input_ids": ids}


def _images(side: int) -> Callable[[int, int], Inputs]:
    return lambda batch, length: {"x": torch.randn(batch, 3, side, side)}


def _pixels(batch: int, length: int) -> Inputs:
    return {"pixel_values": torch.randn(batch, 3, 32, 32)}


def _captions(batch: int, length: int) -> Inputs:
    return {**_pixels(batch, length), **masked(batch, length)}


def _waves(batch: int, length: int) -> Inputs:
    return {"input_values": torch.randn(batch, 40 * length)}


def net(name: str, make: Callable[[], nn.Module], side: int = 32) -> Architecture:
    return Architecture(name, make, _images(side), {"x": {0: "batch"}})


SEQUENCE = {"input_ids": BOTH}
ARCHITECTURES = (
    encoder("Bert"),
    Architecture("DistilBert", _distilbert, masked,
                 {"input_ids": BOTH, "attention_mask": BOTH}, LENGTHS),
    encoder("MobileBert", embedding_size=32, intra_bottleneck_size=32, true_hidden_size=32),
    Architecture("GPT2", _gpt2, tokens, SEQUENCE, LENGTHS),
    decoder("Llama"),
    decoder("Qwen2"),
    decoder("Qwen3"),
    decoder("Mistral", sliding_window=None),
    decoder("Gemma2", sliding_window=4),
    Architecture("Gemma3", _gemma3, tokens, SEQUENCE, LENGTHS),
    decoder("Phi3"),
    Architecture("T5", _t5, _pairs, {"input_ids": BOTH, "decoder_input_ids": BOTH}, LENGTHS),
    Architecture("Whisper", _whisper, _speech,
                 {"input_features": {0: "batch"}, "decoder_input_ids": BOTH}, LENGTHS),
    Architecture("ViT", _vit, _pixels, {"pixel_values": {0: "batch"}}),
    Architecture("CLIP", _clip, _captions, {"pixel_values": {0: "batch"}, "input_ids": BOTH,
                                            "attention_mask": BOTH}, LENGTHS),
    Architecture("Wav2Vec2", _wav2vec2, _waves, {"input_values": {0: "batch", 1: "length"}},
                 (20, 13, 31, 24, 17)),
    Architecture("Mamba", _mamba, tokens, {"input_ids": {0: "batch"}}),
    net("ResNet", vision.ResNet, 64),
    net("MobileNetV3", vision.MobileNetV3),
    net("EfficientNet", vision.EfficientNet),
    net("ConvNeXt", vision.ConvNeXt),
    net("Swin", vision.Swin),
    net("UNet", vision.UNet),
    Architecture("LSTM tagger", vision.Tagger,
                 lambda b, n: {"ids": torch.randint(0, 50, (b, n))}, {"ids": {0: "batch"}}),
    net("YOLO", vision.Yolo, 64),
)  # fmt: skip
"""In the order in which they are run."""
