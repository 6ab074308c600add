"""wav2vec2: characters of a waveform."""

import torch
from transformers import Wav2Vec2Config, Wav2Vec2ForCTC

import rlx

config = Wav2Vec2Config(vocab_size=30, hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
                        intermediate_size=64, conv_dim=(16, 16, 16), conv_stride=(5, 2, 2),
                        conv_kernel=(10, 3, 3), num_conv_pos_embeddings=16,
                        num_conv_pos_embedding_groups=4)  # fmt: skip
exe = rlx.from_pretrained(Wav2Vec2ForCTC(config))
for length in (4000, 2500):
    print(exe(input_values=torch.randn(2, length)).logits.argmax(-1).shape)
