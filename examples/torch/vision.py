"""ViT: classes of images."""

import torch
from transformers import ViTConfig, ViTForImageClassification

import rlx

config = ViTConfig(hidden_size=64, num_hidden_layers=2, num_attention_heads=4,
                   intermediate_size=128, image_size=32, patch_size=8, num_labels=10)  # fmt: skip
exe = rlx.from_pretrained(ViTForImageClassification(config))
for batch in (1, 5):
    print(exe(pixel_values=torch.randn(batch, 3, 32, 32)).logits.argmax(-1))
