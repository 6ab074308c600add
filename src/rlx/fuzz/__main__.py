"""`python -m rlx.fuzz`: the same as `rlx fuzz`."""

from __future__ import annotations

import sys

from rlx.__main__ import main

if __name__ == "__main__":
    sys.exit(main(["fuzz", *sys.argv[1:]]))
