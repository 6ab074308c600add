"""What tests of torch.compile share."""

from __future__ import annotations

from typing import Any

import pytest

from rlx.frontends.torch.dynamo import backend


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The programs that are compiled."""
    made: list[Any] = []
    compile_graph = backend.compiled_graph

    def watched(*args: Any) -> Any:
        made.append(compile_graph(*args))
        return made[-1]

    monkeypatch.setattr(backend, "compiled_graph", watched)
    return made
