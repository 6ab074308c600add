"""BERT: sentence embeddings, by the mean over the tokens that count."""

import torch
from transformers import BertConfig, BertModel

import rlx

config = BertConfig(vocab_size=500, hidden_size=64, num_hidden_layers=2, num_attention_heads=4,
                    intermediate_size=128)  # fmt: skip
exe = rlx.from_pretrained(BertModel(config))


def embedding(ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    rows = exe(input_ids=ids, attention_mask=mask).last_hidden_state
    weights = mask.unsqueeze(-1).float()
    return torch.nn.functional.normalize((rows * weights).sum(1) / weights.sum(1), dim=-1)


ids = torch.randint(1, 500, (3, 12))
mask = torch.ones_like(ids)
mask[1, 9:] = 0
found = embedding(ids, mask)
print(found.shape, (found @ found.T).round(decimals=3))
