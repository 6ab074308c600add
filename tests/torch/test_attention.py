"""Attention as PyTorch has it: any lengths, heads and ranks, and scores that are functions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from rlx.frontends.torch.dynamo import backend


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    torch.manual_seed(0)
    with torch.no_grad():
        yield


def check(function: Callable[..., Any], *args: Tensor, dynamic: bool | None = None) -> None:
    """Equal to eager, with no op left to torch. Softmax and sums in another order, and bf16 rounded
    at other places: a few roundings of the dtype."""
    compiled = torch.compile(
        function, backend=backend.rlx, options={"strict": True}, dynamic=dynamic
    )
    limit = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 2e-2}[args[0].dtype]
    torch.testing.assert_close(compiled(*args), function(*args), rtol=limit, atol=limit)


def heads(*lengths: int, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    return [torch.randn(2, 4, n, 8, dtype=dtype) for n in lengths]


def causal(q: Tensor, k: Tensor, v: Tensor, **how: Any) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, **how)


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("lengths", [(5, 9, 9), (9, 5, 5), (1, 7, 7), (6, 6, 6)], ids=str)
def test_causal_masks_begin_at_the_first_key(
    lengths: tuple[int, ...], dynamic: bool | None
) -> None:
    check(causal, *heads(*lengths), dynamic=dynamic)


@pytest.mark.parametrize("rank", [2, 3, 5])
def test_causal_masks_of_other_ranks(rank: int) -> None:
    q, k, v = (x[None] if rank == 5 else x[(0,) * (4 - rank)] for x in heads(5, 9, 9))
    check(causal, q, k, v)


def test_keys_and_values_are_broadcast_and_shared() -> None:
    q, k, v = heads(5, 9, 9)
    attend = F.scaled_dot_product_attention
    check(attend, q, k[:1], v[:1])
    check(attend, q, k[:, :1], v[:, :1])
    check(lambda q, k, v: causal(q, k, v, enable_gqa=True), q, k[:, :2], v[:, :2])


def test_sums_that_a_backward_pass_reads_have_the_dtype_of_the_scores() -> None:
    """In f64 gradients agree to 1e-10, which sums in f32 would not."""
    eager = [x.requires_grad_() for x in heads(5, 9, 9, dtype=torch.float64)]
    own = [x.detach().clone().requires_grad_() for x in eager]
    with torch.enable_grad():
        causal(*eager).square().sum().backward()
        torch.compile(causal, backend=backend.rlx, options={"strict": True})(
            *own
        ).square().sum().backward()
    for got, want in zip(own, eager, strict=True):
        torch.testing.assert_close(got.grad, want.grad, rtol=1e-10, atol=1e-10)


SLOPES, BIAS = torch.tensor([0.5, 0.25, -0.125, 2.0]), torch.arange(4 * 48 * 48.0).sin()
DOCUMENTS = torch.arange(96).reshape(2, 48) // 17
SCORES: dict[str, Callable[..., Tensor] | None] = {
    "plain": None,
    "alibi": lambda s, b, h, i, j: s + SLOPES[h] * (j - i),
    "added table": lambda s, b, h, i, j: s + BIAS.reshape(4, 48, 48)[h, i, j],
    "softcap": lambda s, b, h, i, j: 5 * torch.tanh(s / 5),
    "hidden by the score": lambda s, b, h, i, j: torch.where(i >= j, s, -float("inf")),
    "scaled": lambda s, b, h, i, j: s * (1 + b) + h,
}
MASKS: dict[str, Callable[..., Tensor] | None] = {
    "all": None,
    "causal": lambda b, h, i, j: i >= j,
    "documents": lambda b, h, i, j: DOCUMENTS[b, i] == DOCUMENTS[b, j],
    "some see nothing": lambda b, h, i, j: (i >= j) & (i < 40),
}


@pytest.mark.filterwarnings("ignore")  # flex_attention warns that eager mode is slow
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("score", SCORES)
def test_flex_attention(score: str, mask: str) -> None:
    seen = MASKS[mask]
    blocks = None if seen is None else create_block_mask(seen, 2, None, 48, 48, "cpu", 16)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Any:
        return flex_attention(q, k, v, score_mod=SCORES[score], block_mask=blocks)

    check(attend, *heads(48, 48, 48))


@pytest.mark.filterwarnings("ignore")  # flex_attention warns that eager mode is slow
def test_flex_attention_of_shared_heads_other_lengths_dtypes_and_sums() -> None:
    q, k, v = heads(16, 48, 48)
    softcap = SCORES["softcap"]
    check(
        lambda q, k, v: flex_attention(q, k, v, score_mod=softcap, enable_gqa=True),
        q, k[:, :2], v[:, :2],
    )  # fmt: skip
    check(lambda q, k, v: flex_attention(q, k, v, return_lse=True), q, k, v)
    check(lambda q, k, v: flex_attention(q, k, v, score_mod=softcap), q, k, v, dynamic=True)
    check(flex_attention, *(x.bfloat16() for x in (q, k, v)))
