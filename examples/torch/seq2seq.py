"""Whisper: text of a log-mel spectrogram, greedily."""

import torch
from transformers import WhisperConfig, WhisperForConditionalGeneration

import rlx

config = WhisperConfig(vocab_size=500, d_model=64, encoder_layers=2, decoder_layers=2,
                       encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=128,
                       decoder_ffn_dim=128, num_mel_bins=16, max_source_positions=50,
                       pad_token_id=0, bos_token_id=1, eos_token_id=2,
                       decoder_start_token_id=1)  # fmt: skip
exe = rlx.from_pretrained(WhisperForConditionalGeneration(config))
features = torch.randn(2, 16, 100)
ids = torch.ones(2, 2, dtype=torch.int64)
for _ in range(6):
    logits = exe(input_features=features, decoder_input_ids=ids).logits
    ids = torch.cat([ids, logits[:, -1].argmax(-1, keepdim=True)], 1)
print(ids)
