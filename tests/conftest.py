"""What several test files share."""

from __future__ import annotations

import gc
import os
import sys
import tempfile
from pathlib import Path

# `bench` holds the models that tests and benches share; it is not part of the package.
sys.path.insert(0, str(Path(__file__).parents[1]))

# What is tested is what the code does now, whatever the user's cache, threads and terminal are. A
# test that turns the cache on finds none of the user's.
os.environ["RLX_CACHE"] = "off"
os.environ["RLX_CACHE_DIR"] = str(Path(tempfile.gettempdir()) / f"rlx-tests-{os.getpid()}")
for name in (
    "RLX_THREADS", "RLX_CACHE_BYTES", "OMP_NUM_THREADS", "XDG_CACHE_HOME", "PYTHONHASHSEED",
    "COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "CLICOLOR_FORCE", "PY_COLORS", "TTY_COMPATIBLE",
    "GITHUB_ACTIONS", "TERMINAL_WIDTH",
):  # fmt: skip
    os.environ.pop(name, None)


def pytest_collection_finish() -> None:
    """The collector does not look at the tests themselves again: fifteen thousand of them, while
    each allocates little that lives on (a tenth of the time of `tests/unit`)."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20, 20)
