"""`rlx VERB …`, also as `python -m rlx`. Each verb is one file of `rlx.cli`."""

from __future__ import annotations

import sys
from importlib.util import find_spec

NEEDED = ("typer", "rich")
"""What the command line is made with, and nothing else of rlx."""


def main(argv: list[str] | None = None) -> int:
    """Exit 0 where it worked, 1 where it did not, 2 where the call was wrong."""
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        wanted = " and ".join(missing)
        print(f"rlx: the command line needs {wanted}: pip install 'rlx[cli]'", file=sys.stderr)
        return 1
    from rlx.cli.app import run

    return run(sys.argv[1:] if argv is None else argv)


if __name__ == "__main__":
    sys.exit(main())
