"""Every law and random graphs on an NVIDIA GPU: `python -m tests.backend.cuda.all --seconds 60`.

With `--bits [cases…]`, whether workloads have the same bits from run to run instead.
"""

from __future__ import annotations

import sys

from tests.backend.cuda import bits
from tests.backend.gpu.all import main

if __name__ == "__main__":
    given = [a for a in sys.argv[1:] if a != "--bits"]
    sys.exit(bits.main(given) if "--bits" in sys.argv else main(target="cuda"))
