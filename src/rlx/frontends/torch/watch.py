"""Weights as they were when they were prepared, and whether they still are.

Torch counts up a tensor's version where an op changes it, and `tensor.data = …` moves it. Writes
through `tensor.data`, NumPy's views and fused optimisers it does not count: where a program has
copies of a weight, packed or computed, the memory itself is compared.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from rlx.core.memory_digests import BLOCK, MemoryDigests
from rlx.core.page_writes import Span
from rlx.frontends.torch.model import weight_array
from rlx.frontends.torch.namespaces import torch
from rlx.frontends.torch.written import tensor_edges

Digests = Callable[..., MemoryDigests]
"""Of some memory, with `counts_writes` where the system is to count writes to it."""
MAX_COUNTED = 4
"""Changes after which weights count as trained: each write to a page costs a fault where the system
counts it, which is more than reading all of them."""


class Watch:
    """Tensors by name as they are when this is made; those that are copied are compared byte by
    byte, where it is stated which are."""

    def __init__(
        self,
        tensors: Mapping[str, Any],
        copied: Collection[str] | None,
        digests: Digests,
        num_changes: int = 0,
    ) -> None:
        self._make, self._num_changes = (copied, digests), num_changes
        self.tensors = list(tensors.values())
        self._counted = [t for t in self.tensors if not t.is_inference()]
        """Torch counts no changes of those that inference mode made."""
        self.edges = [tensor_edges(t) for t in self.tensors]
        """Where their memory begins and ends."""
        self._versions = list(map(_version, self._counted))
        self._addresses = list(map(torch.Tensor.data_ptr, self.tensors))
        self._names = list(tensors)
        spans = list(self._spans().values())
        self.digests = digests(spans, counts_writes=num_changes < MAX_COUNTED)

    def _spans(self) -> dict[str, Span]:
        """The memory of the tensors of which there are copies."""
        copied, _ = self._make
        if copied is None:
            return {}
        edges = zip(self._names, self.tensors, self.edges)
        return {
            name: (begin, end - begin)
            for name, tensor, (begin, end) in edges
            if end > begin and (name in copied or not _is_shared(tensor))
        }

    def again(self, tensors: Sequence[Any]) -> Watch:
        """Of these tensors, as they are now."""
        named = dict(zip(self._names, tensors, strict=True))
        return Watch(named, *self._make, self._num_changes + 1)

    def is_unchanged(self) -> bool:
        """Are the tensors what they were?"""
        return (
            [*map(_version, self._counted)] == self._versions
            and [*map(torch.Tensor.data_ptr, self.tensors)] == self._addresses
            and self.digests.is_unchanged()
        )

    def is_same(self, given: Sequence[Any]) -> bool:
        """Are these the same tensors, unchanged?"""
        return all(map(operator.is_, given, self.tensors)) and self.is_unchanged()

    def news(self, before: Watch) -> dict[str, Any]:
        """The tensors that are other than they were before."""
        states = zip(self._names, self._states(), before._states(), strict=True)
        changed = {n for n, a, b in states if a[0] is not b[0] or a[1:] != b[1:]}
        return {n: t for n, t in zip(self._names, self.tensors) if n in changed}

    def _states(self) -> list[tuple[Any, ...]]:
        counts = dict(zip(map(id, self._counted), self._versions))
        content, at = dict[str, bytes](), 0
        for name, (_, size) in self._spans().items():
            count = -(-size // BLOCK)
            content[name] = self.digests.blocks[at : at + count].tobytes()
            at += count
        rows = zip(self._names, self.tensors, self._addresses)
        return [(t, counts.get(id(t), -1), a, content.get(n)) for n, t, a in rows]


def _is_shared(tensor: Any) -> bool:
    """Do programs read the memory of the tensor itself?"""
    return weight_array(tensor).ctypes.data == tensor.data_ptr()


_version = operator.attrgetter("_version")
