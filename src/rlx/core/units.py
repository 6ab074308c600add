"""Quantities as text: three significant digits, in the unit that suits them."""

from __future__ import annotations

from collections.abc import Sequence

BYTES = ("B", "kB", "MB", "GB", "TB")
FLOPS = ("FLOP", "kFLOP", "MFLOP", "GFLOP", "TFLOP")
TIMES = ("ns", "µs", "ms", "s")


def size_text(size: float) -> str:
    """Bytes."""
    return scaled(size, BYTES)


def flops_text(flops: float) -> str:
    """Arithmetic."""
    return scaled(flops, FLOPS)


def time_text(ns: float) -> str:
    """Nanoseconds."""
    return scaled(ns, TIMES)


def scaled(value: float, units: Sequence[str]) -> str:
    """A value in the largest of its units, each a thousand of the one before."""
    size, unit = abs(value), 0
    while size >= 999.5 and unit + 1 < len(units):
        size, unit = size / 1000, unit + 1
    digits = 0 if unit == 0 or size >= 99.95 else 1 if size >= 9.995 else 2
    sign = "-" if value < 0 and float(f"{size:.{digits}f}") else ""
    return f"{sign}{size:,.{digits}f} {units[unit]}"


def counted(count: int, what: str) -> str:
    """1 kernel, 2 kernels."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"
