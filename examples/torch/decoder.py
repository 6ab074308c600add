"""Llama: the next tokens, greedily; each step runs the whole sequence."""

import torch
from transformers import LlamaConfig, LlamaForCausalLM

import rlx

config = LlamaConfig(vocab_size=500, hidden_size=64, num_hidden_layers=2, num_attention_heads=4,
                     num_key_value_heads=2, intermediate_size=128)  # fmt: skip
exe = rlx.from_pretrained(LlamaForCausalLM(config))
ids = torch.randint(1, 500, (2, 5))
for _ in range(8):
    logits = exe(input_ids=ids, attention_mask=torch.ones_like(ids)).logits
    ids = torch.cat([ids, logits[:, -1].argmax(-1, keepdim=True)], 1)
print(ids)
