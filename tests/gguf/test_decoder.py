"""Decoders of GGUF files against an evaluation in double precision."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlx
from rlx.frontends.gguf.model import load
from tests.gguf import files
from tests.gguf.evaluate import Evaluator

TOKENS = [3, 14, 15, 9, 26, 5, 35, 8, 9, 7, 9, 32]


def stepped(exe: rlx.Executable, parts: list[list[int]]) -> np.ndarray[Any, Any]:
    """Logits of every token, given in parts behind a cache that grows."""
    empty = np.zeros((1, 0, files.KV_HEADS * files.HEAD_DIM), np.float32)
    caches: list[Any] = [empty] * (len(exe.inputs) - 2)
    made: list[Any] = []
    for part in parts:
        logits, *caches = exe(np.array([part]), np.arange(len(part)), *caches)
        made.append(logits[0])
    return np.concatenate(made)


def appended(exe: rlx.Executable, parts: list[list[int]], slot: int = 1) -> np.ndarray[Any, Any]:
    """The same on a session, whose caches are written in place."""
    session, at, made = exe.session(slots=3), 0, list[Any]()
    for part in parts:
        place = (np.array([n], np.int32) for n in (slot, at))
        made.append(session(np.array([part]), np.arange(len(part)), *place)[0])
        at += len(part)
    return np.concatenate(made)


YARN = {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0,
        "rope.scaling.original_context_length": 32}  # fmt: skip
LONG = {
    "rope.scaling.type": "longrope", "rope.scaling.attn_factor": 1.25, "rope.dimension_count": 24,
    "factors": ("rope_factors_long.weight", "rope_factors_short.weight"),
}  # fmt: skip
CASES: list[tuple[str, dict[str, Any]]] = [
    *((name, {}) for name in files.ARCHITECTURES),
    ("llama", {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}),
    ("llama", {"rope.scaling.factor": 4.0, "factors": ("rope_freqs.weight",)}),
    ("llama", {"attention.sliding_window": 4, "tied": True}),
    ("llama", YARN),
    ("llama", {"float": True, "tied": True}),
    ("llama", {"biases": True}),
    ("qwen2", {**YARN, "tied": True}),
    ("phi3", {**LONG, "rope.scaling.original_context_length": 32}),
    ("phi3", {**LONG, "rope.scaling.original_context_length": 256}),
    ("gemma3", {"attention.sliding_window_pattern": [True, False, True, False, True, True]}),
    ("gemma3", {"attention.sliding_window_pattern": 2, "final_logit_softcapping": 3.0,
                "rope.freq_base_swa": 500.0, "rope.scaling.factor": 8.0}),
    ("gemma2", {"attention.sliding_window": 256}),
    ("smollm3", {"rope.layer_pattern": [False, True, False, True]}),
]  # fmt: skip


def _called(value: Any) -> str:
    return value if isinstance(value, str) else ",".join(value) or "plain"


@pytest.mark.parametrize(("architecture", "more"), CASES, ids=_called)
def test_logits_are_those_of_double_precision(
    architecture: str, more: dict[str, Any], tmp_path: Path
) -> None:
    path = files.write(tmp_path / "tiny.gguf", architecture, **more)
    exact = Evaluator(path).logits(TOKENS)
    in_parts = [TOKENS[:5], [TOKENS[5]], TOKENS[6:]]
    exe = rlx.compile(rlx.load(path))
    made = [stepped(exe, parts) for parts in ([TOKENS], in_parts)]
    exe = rlx.compile(load(path, caches="session", at_most=files.CONTEXT))
    made += [appended(exe, parts) for parts in ([TOKENS], in_parts)]
    for found in made:  # f32 sums of up to 128 terms in three layers
        assert np.abs(found - exact).max() <= 1e-5 * np.abs(exact).max()


def test_caches_of_half_floats_round_keys_and_values(tmp_path: Path) -> None:
    path = files.write(tmp_path / "tiny.gguf", "llama")
    exact = Evaluator(path).logits(TOKENS)
    exe = rlx.compile(load(path, caches="session", cached="f16"))
    made = appended(exe, [TOKENS[:5], *([t] for t in TOKENS[5:])])
    error = np.abs(made - exact).max() / np.abs(exact).max()
    assert 1e-6 < error <= 2e-3  # keys and values have eleven bits


def test_quantised_caches_round_to_eight_bits(tmp_path: Path) -> None:
    path = files.write(tmp_path / "tiny.gguf", "llama")
    exact = Evaluator(path).logits(TOKENS)
    exe = rlx.compile(load(path, caches="session", cached="q8_0"))
    made = appended(exe, [TOKENS[:5], *([t] for t in TOKENS[5:])])
    error = np.abs(made - exact).max() / np.abs(exact).max()
    assert 1e-5 < error <= 2e-2  # a code is at most half a 127th of its block's greatest off
    held, half = (exe.session(slots=2).memory.state_bytes, files.KV_HEADS * files.HEAD_DIM * 2)
    assert held == 2 * 2 * files.LAYERS * files.CONTEXT * half * 17 // 32


def test_quantised_caches_have_whole_blocks(tmp_path: Path) -> None:
    path = files.write(tmp_path / "tiny.gguf", "llama", head_dim=16)
    with pytest.raises(rlx.Error, match="heads of 16 elements are not whole blocks of 32"):
        load(path, caches="session", cached="q8_0")


def test_rows_of_a_session_have_positions_and_slots_of_their_own(tmp_path: Path) -> None:
    path = files.write(tmp_path / "tiny.gguf", "llama")
    exe = rlx.compile(load(path, caches="session"))
    session, lengths, rows = exe.session(slots=3), [7, 2, 11], np.arange(1)
    for slot, length in enumerate(lengths):
        ids = np.array([TOKENS[:length]])
        session(ids, rows, *(np.array([n], np.int32) for n in (slot, 0)))
    ids = np.array([[TOKENS[n]] for n in lengths])
    together = session(ids, rows, *(np.array(n, np.int32) for n in ([0, 1, 2], lengths)))
    for row, length in zip(together, lengths):
        alone = appended(exe, [TOKENS[:length], [TOKENS[length]]])[-1]
        assert np.abs(row[0] - alone).max() <= 1e-5 * np.abs(alone).max()  # other tiles


@pytest.mark.parametrize("precision", [None, "int8-activations"])
@pytest.mark.parametrize("architecture", ["llama", "gemma2"])
def test_decoding_gives_the_bits_of_the_whole_prompt(
    architecture: str, precision: str | None, tmp_path: Path
) -> None:
    more: dict[str, Any] = {"attention.sliding_window": 4} if architecture == "gemma2" else {}
    path = files.write(tmp_path / "tiny.gguf", architecture, **more)
    model = load(path, caches="session", cached="f16")
    exe = rlx.compile(model, precision=precision)
    whole = appended(exe, [TOKENS])
    for parts in ([[t] for t in TOKENS], [TOKENS[:5], [TOKENS[5]], TOKENS[6:]]):
        assert np.array_equal(appended(exe, parts), whole)


@pytest.mark.parametrize("architecture", ["llama", "gemma2", "qwen3"])
def test_tokens_that_nobody_reads_are_steps_without_the_head(
    architecture: str, tmp_path: Path
) -> None:
    """Of the last layer a step computes keys and values; attention over them, the network and the
    head run once, at the end."""
    model = load(files.write(tmp_path / "tiny.gguf", architecture), caches="session")
    exe = rlx.compile(model, at_end=["logits"])
    session, rows = exe.session(slots=1), np.array([0])
    assert (session.step_outputs, session.finish_outputs) == ((), ("logits",))
    for at, token in enumerate(TOKENS):
        given = (np.array([n], np.int32) for n in (0, at))
        assert session.step(np.array([[token]]), rows, *given) == ()
    expected = appended(rlx.compile(model), [[t] for t in TOKENS], slot=0)[-1]
    assert np.array_equal(session.finish()[0, 0], expected)
    phases = [exe.lir.plan.phase_of(n) for n in exe.lir.plan.schedule if n.op == "cached_attention"]
    layers = len(phases)
    assert phases == [rlx.Phase.STEADY_STATE] * (layers - 1) + [rlx.Phase.EPILOGUE]


def test_batches_are_rows_alone(tmp_path: Path) -> None:
    path = files.write(tmp_path / "tiny.gguf", "llama")
    exe = rlx.compile(path)
    ids = np.array([TOKENS, TOKENS[::-1]])
    empty = np.zeros((2, 0, files.KV_HEADS * files.HEAD_DIM), np.float32)
    both = exe(ids, np.array([len(TOKENS) - 1]), *[empty] * (2 * files.LAYERS))[0]
    for row, tokens in zip(both, ids):
        alone = stepped(exe, [tokens.tolist()])[-1]
        assert np.abs(row[0] - alone).max() <= 1e-5 * np.abs(alone).max()  # other tiles


def test_yarn_is_a_ramp_between_scaled_and_plain_frequencies(tmp_path: Path) -> None:
    more = {
        "rope.scaling.type": "yarn", "rope.scaling.factor": 4.0,
        "rope.scaling.original_context_length": 32,
    }  # fmt: skip
    plain = rlx.load(files.write(tmp_path / "plain.gguf", "llama")).architecture.rotary
    yarn = rlx.load(files.write(tmp_path / "yarn.gguf", "llama", **more)).architecture.rotary
    ratio = np.array(yarn.frequencies) / plain.frequencies
    assert ratio[0] == 1
    assert ratio[-1] == 0.25
    assert np.all(np.diff(ratio) <= 0)
    assert yarn.magnitude == pytest.approx(1 + 0.1 * np.log(4))


def test_what_is_unknown_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(rlx.UnsupportedError, match=r"architecture 'mamba'.*llama, qwen2"):
        rlx.load(_renamed(tmp_path, "llama", b"llama", b"mamba"))
    more = {"rope.scaling.type": "spiral"}
    with pytest.raises(rlx.UnsupportedError, match=r"'spiral'.*linear, yarn and longrope"):
        rlx.load(files.write(tmp_path / "spiral.gguf", "llama", **more))
    with pytest.raises(
        rlx.UnsupportedError, match=r"does not know what to do with blk.0.attn_x_norm"
    ):
        rlx.load(_renamed(tmp_path, "qwen3", b"blk.0.attn_q_norm", b"blk.0.attn_x_norm"))
    with pytest.raises(rlx.Error, match=r"has no tensor 'blk.2.ffn_up.weight'"):
        rlx.load(_renamed(tmp_path, "qwen3", b"blk.2.ffn_up", b"blk.2.ffn_xx"))


def _renamed(folder: Path, architecture: str, name: bytes, other: bytes) -> Path:
    path = files.write(folder / "renamed.gguf", architecture)
    path.write_bytes(path.read_bytes().replace(name, other))
    return path


def test_frequencies_of_long_sequences_are_those_of_the_length(tmp_path: Path) -> None:
    """Of one more token than was trained, all tokens of a call have the long factors."""
    more = {**LONG, "rope.scaling.original_context_length": 8, "float": True}
    path = files.write(tmp_path / "tiny.gguf", "phi3", **more)
    exact = Evaluator(path)
    exe = rlx.compile(rlx.load(path))
    for count in (8, 9, 12):
        wanted = exact.logits(TOKENS[:count])
        assert np.abs(stepped(exe, [TOKENS[:count]]) - wanted).max() <= 1e-5 * np.abs(wanted).max()
