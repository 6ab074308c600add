"""Caches of layers with a sliding window: no more rows than the window takes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlx
from rlx.frontends.gguf.caches import SHIFT, WINDOW_MARGIN
from rlx.frontends.gguf.model import load
from rlx.lm.decoder import SessionDecoder
from rlx.lm.prefix_cache import PrefixCache
from rlx.lm.slots import Part
from tests.gguf import files

WINDOW, STEP, CONTEXT = 5, 16, 640
TOKENS = np.random.default_rng(0).integers(0, files.WORDS, CONTEXT).tolist()


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("windows")
    return files.write(folder / "tiny.gguf", "gemma3", context=CONTEXT)


@pytest.fixture(scope="module")
def programs(path: Path) -> tuple[Any, Any]:
    """With caches of windows, and with those of the whole context."""
    made = (load(path, caches="session", window_step=n) for n in (STEP, CONTEXT))
    short, long = (rlx.compile(m) for m in made)
    return short, long


def extended(decoder: SessionDecoder, slot: int, start: int, end: int) -> Any:
    """The logits behind the last of some tokens, given in chunks."""
    found: Any = None
    for first in range(start, end, STEP):
        tokens = TOKENS[first : min(first + STEP, end)]
        (found,) = decoder.step([Part(slot, tokens, [len(tokens) - 1])])
    return found


def decoders(programs: Sequence[Any]) -> tuple[SessionDecoder, SessionDecoder]:
    short, long = (SessionDecoder(exe, 3, WINDOW) for exe in programs)
    return short, long


def test_caches_are_as_long_as_windows_take(programs: tuple[Any, Any]) -> None:
    short, long = decoders(programs)
    rows = {s.static_dims[1] for n, s in short.session.states.items() if n.startswith("window_")}
    assert rows == {WINDOW + WINDOW_MARGIN + SHIFT + STEP}
    assert short.session.memory.state_bytes < 0.8 * long.session.memory.state_bytes


def test_logits_are_those_of_whole_caches(programs: tuple[Any, Any]) -> None:
    """Bit for bit, in chunks and token by token, in slots that are shifted at different times."""
    short, long = decoders(programs)
    for start, end in ((0, 300), (300, 500)):
        for slot in (0, 2):
            made = [extended(d, slot, start, end - 7 * slot * (end == 300)) for d in (short, long)]
            assert np.array_equal(*made)
        for d in (short, long):
            d.truncate(2, 500 if end == 500 else 286)
        if end == 300:
            assert np.array_equal(*(extended(d, 2, 286, 300) for d in (short, long)))
    for at in range(500, 600):
        parts = [Part(slot, [TOKENS[at]], [0]) for slot in (0, 2)]
        assert np.array_equal(short.step(parts), long.step(parts)), at


def test_a_slot_is_cut_back_by_some_tokens_or_to_none(programs: tuple[Any, Any]) -> None:
    short, long = decoders(programs)
    for d in (short, long):
        extended(d, 0, 0, 500)
    assert short.keeps(0, 500 - WINDOW_MARGIN) == 500 - WINDOW_MARGIN
    assert short.keeps(0, 100) == 0
    assert long.keeps(0, 100) == 100
    made = []
    for d in (short, long):
        d.copy(0, 1, 490)  # to another slot
        d.truncate(0, 440)
        made.append([extended(d, 1, 490, 500), extended(d, 0, 440, 470)])
    assert np.array_equal(*made)
    short.truncate(0, 100)
    assert np.array_equal(extended(short, 0, 0, 90), extended(long, 2, 0, 90))


def test_a_prefix_that_was_forgotten_is_computed_again(programs: tuple[Any, Any]) -> None:
    cache = PrefixCache(decoders(programs)[0])
    slot = cache.acquire(TOKENS[:500])
    for first in range(0, 496, STEP):
        cache.step([Part(slot, TOKENS[first : first + STEP], [])])
    cache.release(slot)
    assert cache.length(cache.acquire([*TOKENS[:480], 1])) == 480
    other = cache.acquire([*TOKENS[:100], 1, 1])
    assert cache.share(other, [*TOKENS[:100], 1, 1]) == 0


def test_calls_have_no_more_tokens_than_caches_have_room_for(programs: tuple[Any, Any]) -> None:
    short, _ = decoders(programs)
    with pytest.raises(rlx.Error, match="seq"):
        short.step([Part(0, TOKENS[: STEP + 2], [])])
