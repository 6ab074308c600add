"""Every law and random graphs on an NVIDIA GPU: `python -m tests.backend.cuda.all --seconds 60`."""

from __future__ import annotations

import sys

from tests.backend.gpu.all import main

if __name__ == "__main__":
    sys.exit(main(target="cuda"))
