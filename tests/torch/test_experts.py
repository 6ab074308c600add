"""Mixtures of experts: grouped products, and the layers of transformers that are made of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

import rlx
from rlx.frontends.torch.dynamo import backend


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    torch.manual_seed(0)
    with torch.no_grad():
        yield


def compiled(function: Any, target: str = "cpu") -> Any:
    return torch.compile(function, backend=backend.rlx, options={"strict": True, "target": target})


ENDS = torch.tensor([5, 5, 16], dtype=torch.int32)
FORMS = {
    "rows": ((16, 8), (3, 8, 24)),
    "columns": ((3, 8, 16), (16, 16)),
    "terms": ((8, 16), (16, 24)),
}


@pytest.mark.parametrize("target", ["reference", "cpu"])
@pytest.mark.parametrize("form", FORMS)
def test_grouped_products(form: str, target: str) -> None:
    """One group is empty. bf16, which is all that torch takes, has 8 bits, and the sums of both are
    rounded once."""
    one, other = (torch.randn(dims).bfloat16() for dims in FORMS[form])

    def product(x: Tensor, y: Tensor) -> Tensor:
        return F.grouped_mm(x, y, offs=ENDS)

    made = compiled(product, target)(one, other)
    torch.testing.assert_close(made, product(one, other), rtol=2e-2, atol=2e-2)


def test_rows_of_no_group_are_zeros() -> None:
    pytest.importorskip("transformers.integrations.moe", reason="transformers is not installed")
    x, w = torch.randn(20, 8), torch.randn(3, 8, 24)
    made = compiled(torch.ops.transformers.grouped_mm_fallback)(x, w, ENDS)
    torch.testing.assert_close(made, torch.ops.transformers.grouped_mm_fallback(x, w, ENDS))
    assert not made[16:].any()


SIZES = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1,
    "num_attention_heads": 4, "num_key_value_heads": 2, "num_experts_per_tok": 2,
    "moe_intermediate_size": 24, "shared_expert_intermediate_size": 24, "pad_token_id": 0,
    "num_experts": 4, "num_local_experts": 4,
}  # fmt: skip


class Logits(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor) -> Tensor:
        return self.model(ids, use_cache=False).logits


@pytest.mark.parametrize("experts", ["grouped_mm", "batched_mm"])
@pytest.mark.parametrize("family", ["Mixtral", "Qwen2Moe", "GptOss"])
def test_mixtures_of_transformers(family: str, experts: str) -> None:
    """Compiled whole and exported, equal to eager but for the order of sums."""
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    config = getattr(transformers, f"{family}Config")(**SIZES)
    model = getattr(transformers, f"{family}ForCausalLM")(config).eval()
    model.set_experts_implementation(experts)
    net, ids = Logits(model), torch.randint(1, 64, (2, 7))
    for program in (compiled(net), rlx.compile(net, (ids,))):
        torch.testing.assert_close(program(ids), net(ids), rtol=1e-4, atol=1e-5)
