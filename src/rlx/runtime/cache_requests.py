"""What a compiled program is cached by, field by field, and in what two requests differ."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from rlx._version import __version__
from rlx.core.disk_cache import Cache, code_stamp
from rlx.core.errors import Error
from rlx.core.sections import Sections

REQUEST = "request"
"""The field of an entry's head that has them."""
WORDS = {
    "model": "the model itself: its graph, shapes or dtypes",
    "options": "the options of the compile",
    "target": "the target: what it claims, its prices (rlx calibrate) or threads",
    "version": "the release of rlx",
    "code": "the source files of rlx",
    "machine": "the instruction set or device",
}


def request_facts(model: str, options: str, target: str, identity: str) -> dict[str, str]:
    """All that decides whether a cached program serves a request."""
    made = {"model": model, "options": options, "target": target, "machine": identity}
    return {**made, "version": __version__, "code": code_stamp()}


def why_missed(cache: Cache, name: str, facts: Mapping[str, str]) -> str:
    """In what the nearest program of the same name or model differs from what is asked for."""
    found = [r for n, r in _requests(cache) if n == name or r.get("model") == facts["model"]]
    if not found:
        return f"no program of {name!r} is in {cache.folder}"
    nearest = min(found, key=lambda r: len(_differing(r, facts)))
    differing = _differing(nearest, facts)
    if not differing:
        return "its entry cannot be read, or was removed"
    return "; ".join(
        _difference(field, nearest.get(field, ""), facts[field]) for field in differing
    )


def _requests(cache: Cache) -> list[tuple[str, Mapping[str, Any]]]:
    made: list[tuple[str, Mapping[str, Any]]] = []
    for path in cache.paths():
        with suppress(Error, OSError):
            head = Sections.open(path).head
            if isinstance(request := head.get(REQUEST), dict):
                made.append((str(head.get("name", "")), request))
    return made


def _differing(cached: Mapping[str, Any], facts: Mapping[str, str]) -> list[str]:
    return [field for field, value in facts.items() if cached.get(field) != value]


def _difference(field: str, cached: str, asked: str) -> str:
    """Options word by word; of hashes there is nothing to show."""
    if field in ("model", "target", "code"):
        return f"{field} differs ({WORDS[field]})"
    before, after = set(str(cached).split(" ")), set(asked.split(" "))
    was, now = (" ".join(sorted(s)) or "nothing" for s in (before - after, after - before))
    return f"{field} differs ({WORDS[field]}): {now}, cached is {was}"
