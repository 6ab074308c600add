"""Names as reports show them: kernels by their ops, places by the user's names, equal layers once.

matmul at block encoder.layer.0, block encoder_block    → matmul at encoder.layer.0
encoder.layer.0, encoder.layer.1, … encoder.layer.5     → encoder.layer.0–5
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rlx.explain.report import ReportKernel

MOST_OPS = 4
"""Ops of a fused kernel that its title lists."""
NO_BREAK = "\u00a0"
"""A space at which no line ends; tables show a plain one."""
REGIONS = ("region", "elementwise_region")
_NUMBER = re.compile(r"\d+")
_SHAPES = re.compile(r"(?<=\]), ")
_LEAF = re.compile(r"(\w+) '(.+)'")
_LINE = re.compile(r"\.py:\d+$")


def template(text: str) -> str:
    """The text without its numbers: equal for the same place in every layer."""
    return _NUMBER.sub("#", text)


def place_text(where: Sequence[str], most: int = 2) -> str:
    """The first of some places, without the kinds of their names; names before lines of code."""
    ranked = sorted(where, key=is_line)
    ranked = [w for i, w in enumerate(ranked) if i == 0 or not w.startswith("block ")]
    shown = [_plain(w) for w in ranked[:most]]
    return ", ".join(dict.fromkeys(shown)) + (", …" if len(ranked) > most else "")


def _plain(place: str) -> str:
    """An op and the innermost name of where it is; of blocks in blocks, the outer one is a type."""
    op, at, names = place.partition(" at ")
    if not at:
        leaf = _LEAF.fullmatch(place)
        return f"{leaf[1]} {leaf[2]}" if leaf else _name(place)
    inner = min(names.split(", "), key=is_line)
    lowered = inner.removeprefix("pass lower ")
    return f"{op} from lowering {lowered}" if lowered != inner else f"{op} at {_name(inner)}"


def is_line(name: str) -> bool:
    """Is it a line of the code that built the model, rather than a name?"""
    return bool(_LINE.search(name)) and " " not in name


def _name(origin: str) -> str:
    """`onnx /Conv_2` is `/Conv_2`: which front end named it is known to the reader."""
    kind, _, text = origin.partition(" ")
    return text if text and kind.isalpha() and not text.startswith("(") else origin


def merged(texts: Sequence[str]) -> str:
    """Texts of one template as one, with ranges where their numbers differ."""
    found = [_NUMBER.findall(t) for t in texts]
    if not found or any(len(n) != len(found[0]) for n in found):
        return texts[0] if texts else ""
    numbers = [_range(column) for column in zip(*found)]
    parts = _NUMBER.split(texts[0])
    return "".join(a + b for a, b in zip(parts, (*numbers, "")))


def _range(column: Iterable[str]) -> str:
    """0–5 where every number between is there, 0…51 where some are not."""
    held = list(dict.fromkeys(column))
    if len(held) == 1:
        return held[0]
    found = sorted({int(n) for n in held})
    if len(found) == 1:
        return held[0]
    between = "–" if found[-1] - found[0] + 1 == len(found) else "…"
    return f"{found[0]}{between}{found[-1]}"


def kernel_title(kernel: ReportKernel, most: int = MOST_OPS) -> str:
    """What a kernel computes: its op, or the ops that were fused into it."""
    if kernel.op not in REGIONS:
        return kernel.op
    runs: list[tuple[str, int]] = []
    for op in kernel.ops:
        again = bool(runs) and runs[-1][0] == op
        runs = [*runs[:-1], (op, runs[-1][1] + 1)] if again else [*runs, (op, 1)]
    shown = [op if n == 1 else f"{op} ×{n}" for op, n in runs]
    rest = len(shown) - most
    return " + ".join(shown if rest <= 0 else [*shown[:most], f"{rest} more"]) or kernel.op


def clipped(text: str, most: int) -> str:
    """The text, or as much of it as fits: paths lose their first parts, all else its middle."""
    if len(text) <= most:
        return text
    head, at, path = text.rpartition(" at ")
    parts = path.split("/")
    for i in range(1, len(parts)):
        short = f"{head}{at}…/{'/'.join(parts[i:])}"
        if len(short) <= most:
            return short
    begin = most // 4
    return f"{text[:begin]}…{text[begin + 1 - most :]}"


def clipped_shapes(text: str, most: int) -> str:
    """Shapes, each clipped by itself, and in one line."""
    return ", ".join(clipped(shape, most).replace(" ", NO_BREAK) for shape in _SHAPES.split(text))


# -- layers ---------------------------------------------------------------------------------------

CHUNKS = 12
MOST_FLAT = 40
"""So many nodes are readable without folding."""


def layers_of(where: Sequence[Sequence[str]], ids: Sequence[int] | None = None) -> list[str]:
    """The layer of each of some nodes, by their names: the part of a path that is numbered and
    repeats most (`encoder.layer.0`); a block as it is. Where no name says so, and there are many,
    runs of consecutive nodes, called by their ids; by their numbers where they have none."""
    found = [[c for name in names for c in _candidates(name)] for names in where]
    instances: dict[str, set[str]] = {}
    for candidates in found:
        for each, _ in candidates:
            instances.setdefault(template(each), set()).add(each)
    layers = [_layer(candidates, instances) for candidates in found]
    if any(layers) or len(layers) <= MOST_FLAT:
        return layers
    size = -(-len(layers) // CHUNKS)
    numbers = [str(i) for i in ids or range(len(layers))]
    return [_range(numbers[i // size * size :][:size]) for i in range(len(layers))]


def _candidates(name: str) -> Iterator[tuple[str, bool]]:
    """Prefixes of a path that end in a number, and whether one is a whole block."""
    kind, _, text = name.partition(" ")
    if kind == "block":
        yield text, True
        return
    ends = [m.start() for m in re.finditer(r"/", text)]
    for end in ends:
        if text[:end][-1:].isdigit():
            yield text[:end].lstrip("/"), False


def _layer(candidates: Sequence[tuple[str, bool]], instances: Mapping[str, set[str]]) -> str:
    repeated = [c for c, _ in candidates if len(instances[template(c)]) > 1]
    if repeated:
        return max(repeated, key=lambda c: (len(instances[template(c)]), -len(c)))
    return next((c for c, is_block in candidates if is_block), "")
