"""What tests of language models share."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.gguf import files, vocabularies


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of random weights with a vocabulary of words."""
    words = len(vocabularies.pieces()[0])
    folder = tmp_path_factory.mktemp("lm")
    return files.write(
        folder / "tiny.gguf", "llama", words=words, vocabulary=vocabularies.add_pieces
    )
