"""Random valid graphs against every pipeline: `python -m rlx.fuzz --graphs 5000`."""

from rlx.fuzz.generate import Grown, grow
from rlx.fuzz.judge import Mismatch, judge

__all__ = ["Grown", "Mismatch", "grow", "judge"]
