"""`.lir` files: a planned module of any target, as text.

    lir "0.1.0" "8c0f…"
    {
    "target": {...},
    "schedule": [4, 5],
    "slots": [[0, 0, 64, "arena", true], ...],
    ...
    }
    mir "net" {
      ...
    }

The first line has the version of rlx and the fingerprint, then comes the plan, then the final graph
in its own text form. Nodes are numbered as they are planned: in the order of the graph's text, and
behind each node of several results those of its items that nothing reads. Sizes are whole numbers,
or formulas as `rlx.ir.json_form` writes them.

Nothing in such a file is run, nor believed: what is read is verified and its plan checked as if the
planner had just made it, and the fingerprint must be that of the first line.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rlx._version import __version__
from rlx.core.dim import Dim, DimLike
from rlx.core.errors import Error
from rlx.core.layout import Layout
from rlx.cost.target_json import read_target
from rlx.ir.json_form import Decoder
from rlx.ir.lir import BufferPlan, IoManifest, LirModule, Phase, Slot, Space, View
from rlx.ir.mir import Graph, MirModule, Node
from rlx.ir.plan_nodes import planned_nodes, with_all_items
from rlx.ir.text import read
from rlx.passes.context import Context
from rlx.passes.legalise import require_legal
from rlx.plan.check.checker import require_sound
from rlx.plan.phases import mark_planned

if TYPE_CHECKING:
    from rlx.cost.target import Target

_MAKE_AGAIN = "Compile the model again."

# -- from text ------------------------------------------------------------------------------------


def read_lir(text: str, source: str = "text") -> LirModule:
    """The module that `text` is, checked. Whatever is wrong with it is an Error."""
    try:
        return _read(text, source)
    except Error:
        raise
    except (Exception, RecursionError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise Error(f"{source} holds no planned module ({reason:.80}). {_MAKE_AGAIN}") from None


def _read(text: str, source: str) -> LirModule:
    fingerprint, start = _header(text, source)
    head, end = json.JSONDecoder().raw_decode(text, start)
    lines = text.count("\n", 0, end)
    graph = with_all_items(read("\n" * lines + text[end:], source))
    lir = planned(head, graph, read_target(head["target"]))
    require_legal(lir.mir.graph, Context.of(lir.target))
    require_sound(lir)
    if lir.fingerprint != fingerprint:
        raise Error(f"{source} was changed: its fingerprint is another. {_MAKE_AGAIN}")
    return lir


def _header(text: str, source: str) -> tuple[str, int]:
    """The fingerprint of the first line, and where the second begins."""
    line, newline, _ = text.partition("\n")
    kind, _, rest = line.partition(" ")
    words: list[Any] = []
    if kind == "lir":
        listed = rest.replace('" "', '", "')
        words = json.loads(f"[{listed}]")
    if len(words) != 2 or not newline or not all(isinstance(w, str) for w in words):
        raise Error(f"{source} is no planned module: it does not begin with lir. {_MAKE_AGAIN}")
    version, fingerprint = words
    if version != __version__:
        raise Error(
            f"{source} was made by rlx {version:.20}, and this is {__version__}. {_MAKE_AGAIN}"
        )
    return fingerprint, len(line) + 1


def planned(head: Mapping[str, Any], graph: Graph, target: Target) -> LirModule:
    """The module of a graph that has all items, as `plan_json` wrote it; nothing is checked."""
    nodes, decode = planned_nodes(graph), Decoder(head["names"])
    phases = [Phase[p.upper()] for p in head["phases"]]
    held = _Numbered(nodes, decode)
    plan = BufferPlan(
        arena_bytes=_natural(head["arena_bytes"]),
        weight_bytes=_natural(head["weight_bytes"]),
        assignments={held.node(n): held.slot(*slot) for n, *slot in head["slots"]},
        schedule=tuple(map(held.node, head["schedule"])),
        views={held.node(n): held.view(*view) for n, *view in head["views"]},
        in_place={held.node(n): held.node(o) for n, o in head["in_place"]},
        written={held.node(n): held.layout(*rows) for n, *rows in head["written"]},
        phases=dict(zip(nodes, phases, strict=True)),
        io=replace(IoManifest.collect(graph), at_end=_names(head.get("at_end"))),
        alignment=_alignment(head["alignment"]),
        dynamic_symbols=tuple(held.symbol(n) for n in head["symbols"]),
        arena_formula=decode.dim(head["arena"]),
        representative={str(k): _natural(v) for k, v in head["representative"].items()},
    )
    mark_planned(graph, plan.phases)
    split = {held.node(n): bool(is_split) for n, is_split in head["split"]}
    options = head["options"]
    if not isinstance(options, str):
        raise Error(f"expected text, found {options!r:.40}")
    return LirModule(MirModule(graph), plan, target, options, split)


class _Numbered:
    """Reads what speaks of nodes by their numbers."""

    def __init__(self, nodes: Sequence[Node], decode: Decoder) -> None:
        self._nodes, self._decode = nodes, decode

    def node(self, number: Any) -> Node:
        if _natural(number) >= len(self._nodes):
            raise Error(f"there is no node {number}: the graph has {len(self._nodes)}")
        return self._nodes[number]

    def slot(self, offset: Any, size: Any, space: Any, is_external: Any) -> Slot:
        if not isinstance(is_external, bool):
            raise Error(f"expected true or false, found {is_external!r:.40}")
        return Slot(self._dim(offset), self._dim(size), Space(space), is_external)

    def view(self, root: Any, dims: Iterable[Any], strides: Iterable[Any], offset: Any) -> View:
        return View(self.node(root), self.layout(dims, strides, offset))

    def layout(self, dims: Iterable[Any], strides: Iterable[Any], offset: Any) -> Layout:
        sizes, steps = (tuple(map(self._dim, each)) for each in (dims, strides))
        return Layout(sizes, steps, self._dim(offset))

    def symbol(self, name: Any) -> Dim:
        return self._decode.names[name]

    def _dim(self, value: Any) -> DimLike:
        if isinstance(value, bool):
            raise Error(f"expected a size, found {value!r}")
        return self._decode.dim(value)


def _names(value: Any) -> tuple[str, ...] | None:
    if value is None:
        return None
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):  # pyright: ignore[reportUnknownVariableType]
        raise Error(f"expected names of outputs, found {value!r:.40}")
    return tuple(value)  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]


def _natural(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise Error(f"expected a whole number, found {value!r:.40}")
    return value


def _alignment(value: Any) -> int:
    if _natural(value) < 1 or value & (value - 1):
        raise Error(f"alignment {value!r} is not a power of two")
    return value
