"""Registration of custom ops: a name, a NumPy reference and a shape rule.

The registry only grows, so that a name means one thing as long as the program runs. Options are
kept as JSON text in the graph, and given to both functions as keyword arguments.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from rlx.core.arguments import FUNCTION, TEXT
from rlx.core.errors import Error, GraphError
from rlx.core.public_calls import public
from rlx.core.shape import Shape


@dataclass(frozen=True, slots=True)
class CustomOp:
    """A registered op. Calling it builds a node, or runs the reference on arrays."""

    name: str
    reference: Callable[..., Any]
    shape: Callable[..., Any]

    def __call__(self, *operands: Any, **options: Any) -> Any:
        """The result; a tuple where there are several."""
        from rlx.ops import op as table

        made = table.lookup("custom")(*operands, name=self.name, options=dumped(options))
        return made[0] if len(made) == 1 else made


_REGISTRY: dict[str, CustomOp] = {}
_LOCK = threading.Lock()


@public
def custom_op(
    name: str, reference: Callable[..., Any], shape: Callable[..., Any]
) -> CustomOp:  # fmt: skip
    """Register an op: `reference(*arrays, **options)` is its meaning, an array or a tuple of
    them; `shape(*shapes, **options)` gives a rlx.Shape, or a tuple of them."""
    TEXT.check("name", name)
    for what, function in (("reference", reference), ("shape", shape)):
        FUNCTION.check(what, function)
    new = CustomOp(name, reference, shape)
    with _LOCK:
        known = _REGISTRY.setdefault(name, new)
    if known != new:
        raise Error(f"custom op {name!r} is already registered with other functions. Rename one.")
    return known


def registered(name: str) -> CustomOp:
    """The op called `name`."""
    if name not in _REGISTRY:
        known = ", ".join(sorted(_REGISTRY)) or "none"
        raise GraphError(
            f"no custom op {name!r} is registered (known: {known}). Call rlx.custom_op first"
        )
    return _REGISTRY[name]


def dumped(options: dict[str, Any]) -> str:
    """Options as text, the same for equal options."""
    try:
        return json.dumps(options, sort_keys=True)
    except (TypeError, ValueError) as error:
        raise GraphError(f"custom options must be what JSON can hold: {error}") from None


def parsed(options: str) -> dict[str, Any]:
    """Options from text."""
    try:
        found = json.loads(options)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise GraphError(f"options must be a JSON object, got {options[:40]!r}")
    return found


def shapes_of(name: str, shapes: Sequence[Shape], options: str) -> tuple[Shape, ...]:
    """What the registered rule says; whatever goes wrong in it is a GraphError."""
    found, given = registered(name), parsed(options)
    try:
        made = found.shape(*shapes, **given)
    except Exception as error:
        raise GraphError(f"the shape rule of {name!r} refused: {error}") from error
    results = made if isinstance(made, tuple) else (made,)
    if not results or not all(isinstance(r, Shape) for r in results):
        raise GraphError(f"the shape rule of {name!r} gave {made!r}, expected a rlx.Shape")
    return results


def run(name: str, arrays: Sequence[Any], options: str) -> tuple[Any, ...]:
    """What the registered meaning gives; whatever goes wrong in it is an Error.

    It sees its operands read-only: they may be the caller's arrays, or weights that calls share.
    """
    found, given = registered(name), parsed(options)
    try:
        made = found.reference(*map(_read_only, arrays), **given)
    except Error:
        raise
    except Exception as error:
        raise Error(f"custom op {name!r} failed: {error}") from error
    return made if isinstance(made, tuple) else (made,)


def _read_only(array: Any) -> Any:
    seen = array.view()
    seen.flags.writeable = False
    return seen
