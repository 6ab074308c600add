"""`rlx cache`: the cache of compiled programs."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rlx.cli import options
from rlx.core.printable import one_line

if TYPE_CHECKING:
    from collections.abc import Callable

    from rlx.core.disk_cache import Cache, Entry

EXAMPLE = "rlx cache verify"


class Act(enum.Enum):
    """What to do with the entries."""

    LIST = "list"
    SIZE = "size"
    VERIFY = "verify"
    CLEAR = "clear"
    WHY = "why"


def verb(
    act: Annotated[Act, typer.Argument(help="What to do.")] = Act.LIST,
    model: Annotated[
        str | None, typer.Argument(metavar="[MODEL]", help="Of why: the model that is compiled.")
    ] = None,
    target: options.RunOn = None,
    threads: options.Threads = None,
    folder: Annotated[
        str | None, typer.Option("--folder", metavar="FOLDER", help="(default: the user's own)")
    ] = None,
    is_json: options.Json = False,
) -> int:
    """List, measure, check or empty the cache of compiled programs.

    verify reads every entry and compares it with its checksum: exit 1 if one is damaged. Such
    entries are never used, and made again when they are needed. why says whether the program of a
    model is here; if it is not (exit 1), in what the nearest one differs from it. Nothing is
    compiled for that.
    """
    import os

    from rlx.core.disk_cache import Cache
    from rlx.core.errors import Error, InputError

    cache = Cache.of(folder, os.environ)
    if cache is None:
        raise Error(
            "there is no cache: RLX_CACHE is off, or there is no home folder. Name one with "
            "RLX_CACHE_DIR, or give a folder."
        )
    if folder is not None and not cache.folder.is_dir():
        raise InputError(f"{folder} is not a folder. Give one, or none for the user's own")
    if act is Act.WHY:
        return _why(cache, _required(model), target, threads, is_json)
    if model is not None:
        raise typer.BadParameter(f"{act.value} takes no model", param_hint="MODEL")
    return ACTS[act](cache, is_json)


def _required(model: str | None) -> str:
    if model is None:
        raise typer.BadParameter("why needs one: rlx cache why model.onnx", param_hint="MODEL")
    return model


def _why(cache: Cache, model: str, target: str | None, threads: int | None, is_json: bool) -> int:
    from rlx.runtime.asking import asked

    with options.reading():
        answers = asked(model, target, threads, cache)
    if is_json:
        _print_json(cache, model=model, answers=[{"hit": h, "why": w} for h, w in answers])
    else:
        for is_hit, why in answers:
            print(f"{model}: cache {'hit' if is_hit else 'miss'}: {why}")
    return 0 if all(is_hit for is_hit, _ in answers) else 1


def _list(cache: Cache, is_json: bool) -> int:
    entries = cache.entries()
    if is_json:
        _print_json(cache, entries=[_facts(e) for e in entries])
        return 0
    width = max([len("name"), *(len(e.name) for e in entries)])
    if entries:
        print(f"{'used':16}  {'bytes':>13}  {'kind':8}  {'name':{width}}  key")
    for entry in entries:
        name = one_line(entry.name)
        what = f"{entry.size_bytes:13,}  {entry.kind or 'damaged':8}  {name:{width}}"
        print(f"{entry.used:%Y-%m-%d %H:%M}  {what}  {entry.key}")
    return _size(cache, is_json)


def _size(cache: Cache, is_json: bool) -> int:
    entries = cache.entries()
    if is_json:
        _print_json(cache)
        return 0
    held = sum(e.size_bytes for e in entries)
    count = "1 entry" if len(entries) == 1 else f"{len(entries)} entries"
    print(f"{cache.folder}: {count}, {held:,} of at most {cache.max_bytes:,} bytes")
    return 0


def _verify(cache: Cache, is_json: bool) -> int:
    from rlx.cli.progress import progress

    entries = cache.entries()
    damaged: dict[str, str] = {}
    with progress("reading") as report:
        for number, entry in enumerate(entries):
            report(number, len(entries), entry.name)
            fault = cache.fault_of(entry.key)
            if fault is not None:
                damaged[entry.key] = fault
    if is_json:
        _print_json(cache, damaged=damaged)
    else:
        for key, fault in damaged.items():
            print(f"{key}: {fault}")
        print(f"{cache.folder}: {len(entries) - len(damaged)} whole, {len(damaged)} damaged")
    return 1 if damaged else 0


def _clear(cache: Cache, is_json: bool) -> int:
    before, held = len(cache.entries()), cache.size_bytes
    cache.clear()
    left = len(cache.entries())
    if is_json:
        _print_json(cache, removed=before - left, freed_bytes=held - cache.size_bytes)
    else:
        freed = held - cache.size_bytes
        print(f"{cache.folder}: removed {before - left}, which frees {freed:,} bytes")
    return 1 if left else 0


ACTS: dict[Act, Callable[[Cache, bool], int]] = {
    Act.LIST: _list, Act.SIZE: _size, Act.VERIFY: _verify, Act.CLEAR: _clear,
}  # fmt: skip


def _facts(entry: Entry) -> dict[str, Any]:
    facts = {"key": entry.key, "kind": entry.kind, "name": entry.name}
    return {**facts, "bytes": entry.size_bytes, "used": entry.used.isoformat()}


def _print_json(cache: Cache, **more: Any) -> None:
    entries = cache.entries()
    options.print_json({
        "folder": str(cache.folder), "count": len(entries),
        "bytes": sum(e.size_bytes for e in entries), "max_bytes": cache.max_bytes, **more,
    })  # fmt: skip
