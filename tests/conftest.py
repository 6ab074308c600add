"""What several test files share."""

from __future__ import annotations

import gc
import os
import sys
from pathlib import Path

# `bench` holds the models that tests and benches share; it is not part of the package.
sys.path.insert(0, str(Path(__file__).parents[1]))

# What is tested is what the code does now, and the user's own cache is left alone.
os.environ["RLX_CACHE"] = "off"


def pytest_collection_finish() -> None:
    """The collector does not look at the tests themselves again: fifteen thousand of them, while
    each allocates little that lives on (a tenth of the time of `tests/unit`)."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20, 20)
