"""Where torch's kernels give another dtype than its fake tensors state: the statistics of norms of
half floats with scales in f32 are f32, which the kernels of their backward passes require."""

from __future__ import annotations

from typing import Any

from rlx.frontends.torch.aliasing import base_of, is_view, owner_of
from rlx.frontends.torch.namespaces import torch

_NORMS = frozenset({
    "native_layer_norm", "native_group_norm", "native_batch_norm", "_native_batch_norm_legit",
    "_native_batch_norm_legit_functional", "_native_batch_norm_legit_no_training",
    "_batch_norm_with_update", "_batch_norm_with_update_functional", "_batch_norm_no_update",
})  # fmt: skip
_STATISTICS = (1, 2)
"""The results that are mean and 1 / √variance."""


def stated_value(node: Any) -> Any:
    """What a node of an FX graph gives: torch's fake value, with the dtypes of its kernels."""
    value = node.meta.get("val")
    if _is_mixed_norm(node):
        return [_in_f32(v) if i in _STATISTICS else v for i, v in enumerate(value)]
    if isinstance(value, torch.Tensor) and is_view(node) and _is_mixed_norm(base_of(node)):
        item = owner_of(node)
        return _in_f32(value) if item.args[1] in _STATISTICS else value
    return value


def _is_mixed_norm(node: Any) -> bool:
    value = node.meta.get("val")
    if getattr(node.target, "_opname", "") not in _NORMS or not isinstance(value, tuple | list):
        return False
    parameters = (p.meta.get("val") for p in node.args[1:] if isinstance(p, torch.fx.Node))
    dtypes = {p.dtype for p in parameters if isinstance(p, torch.Tensor)}
    return value[0].dtype in (torch.float16, torch.bfloat16) and torch.float32 in dtypes


def _in_f32(fake: Any) -> Any:
    with fake.fake_mode:
        return fake.to(torch.float32)
