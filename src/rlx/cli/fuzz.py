"""`rlx fuzz`: random graphs through every pipeline."""

from rlx.fuzz.__main__ import main

__all__ = ["main"]
