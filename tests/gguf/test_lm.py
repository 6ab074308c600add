"""Text from language models: tokenizers, templates, sampling, generation."""

from __future__ import annotations

import importlib.util
import itertools
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlx
from rlx.frontends.gguf.reader import read_gguf
from rlx.frontends.gguf.word_splits import SPLITS
from rlx.lm import Sampling
from rlx.lm.decoder import SessionDecoder
from rlx.lm.sampling import Sampler
from rlx.lm.stopping import TextStream
from rlx.lm.template import Template
from rlx.lm.tokenizer import tokenizer_of
from tests.children import require_children
from tests.gguf import files, vocabularies
from tests.gguf.evaluate import Evaluator

WITH_TOKENIZERS = pytest.mark.skipif(
    importlib.util.find_spec("tokenizers") is None, reason="the package tokenizers is not installed"
)


@pytest.fixture(scope="module")
def lm(path: Path) -> rlx.lm.LanguageModel:
    return rlx.lm.load(path)


# -- tokenizers ------------------------------------------------------------------------------------


def test_pieces_merge_by_score(path: Path) -> None:
    found = tokenizer_of(read_gguf(path))
    names = [found.texts[t] for t in found.encode("hello hell", begin=False)]
    assert names == ["▁hello", "▁hell"]
    assert found.decode(found.encode("hello hell")) == b" hello hell"
    assert found.texts[found.encode("a")[0]] == "<s>"


def test_what_is_no_piece_is_bytes(path: Path) -> None:
    found = tokenizer_of(read_gguf(path))
    ids = found.encode("é", begin=False)
    assert [found.texts[t] for t in ids] == ["▁", "<0xC3>", "<0xA9>"]
    assert found.decode(ids) == " é".encode()


def test_half_a_character_is_refused(path: Path) -> None:
    with pytest.raises(rlx.Error, match="half of a surrogate pair"):
        tokenizer_of(read_gguf(path)).encode("a\ud800")


def test_control_tokens_are_recognised_where_asked(path: Path) -> None:
    found = tokenizer_of(read_gguf(path))
    plain = found.encode("a<|end|>", begin=False)
    special = found.encode("a<|end|>", begin=False, special=True)
    assert found.texts[special[-1]] == "<|end|>"
    assert found.texts[plain[-1]] != "<|end|>"
    assert found.decode(special, special=True) == b" a<|end|>"
    assert found.decode(special) == b" a"
    assert "  " in [found.texts[t] for t in found.encode("a  b")]  # a user's token always is


@WITH_TOKENIZERS
def test_words_of_every_named_split() -> None:
    """No character is lost, and every pattern is one that the package knows."""
    import tokenizers

    text = "It's 1234 words,\n\n  ÉCOLE 中文 $5.99 XMLHttp"
    for name, patterns in SPLITS.items():
        steps = [tokenizers.pre_tokenizers.Split(tokenizers.Regex(p), "isolated") for p in patterns]
        parts = tokenizers.pre_tokenizers.Sequence(steps).pre_tokenize_str(text)
        assert "".join(part for part, _ in parts) == text, name
        assert len(parts) > 5, name


@WITH_TOKENIZERS
def test_byte_pairs(tmp_path: Path) -> None:
    words = len(vocabularies.byte_pairs()[0])
    made = files.write(
        tmp_path / "bpe.gguf", "qwen2", words=words, vocabulary=vocabularies.add_byte_pairs
    )
    found = tokenizer_of(read_gguf(made))
    ids = found.encode("on the é<|end|>", special=True)
    assert [found.texts[t] for t in ids][2] == "Ġthe"
    assert found.decode(ids, special=True) == "on the é<|end|>".encode()
    assert found.ends == {3}


@WITH_TOKENIZERS
def test_words_are_covered_by_the_longest_pieces(tmp_path: Path) -> None:
    """As llama.cpp has them: `python -m tests.gguf.tokens_against_llama_cpp`."""
    words = len(vocabularies.word_pieces()[0])
    add = vocabularies.add_word_pieces
    made = files.write(tmp_path / "bert.gguf", "llama", words=words, vocabulary=add)
    found = tokenizer_of(read_gguf(made))
    named = {
        "Hello, unABLE": "[CLS] ▁hello ▁, ▁un able [SEP]",
        "théing 中a": "[CLS] ▁the ing ▁中 ▁a [SEP]",
        "ab\0c ☂b": "[CLS] ▁a b c [UNK] [SEP]",
        "": "[CLS] [SEP]",
    }
    for text, names in named.items():
        assert [found.texts[t] for t in found.encode(text)] == names.split()
    assert found.encode("a", begin=False) == found.encode("a")[1:-1]
    assert found.encode("[SEP]", begin=False, special=True) == [3]
    assert found.decode(found.encode("hello unable")) == b" hello unable"


def test_unknown_tokenizers_are_refused_by_name(path: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.gguf"
    at = path.read_bytes()
    key = b"tokenizer.ggml.model"
    begin = at.index(key) + len(key) + 4 + 8
    other.write_bytes(at[:begin] + b"xxxxx" + at[begin + 5 :])
    with pytest.raises(rlx.UnsupportedError, match=r"'xxxxx'.*SentencePiece"):
        tokenizer_of(read_gguf(other))


# -- templates -------------------------------------------------------------------------------------


def test_a_template_cannot_reach_python() -> None:
    for source in (
        "{{ messages.__class__.__mro__ }}",
        "{{ ''.__class__.__base__.__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{{ range(10**9) }}",
        "{% for a in range(60000) %}{% for b in range(60000) %}{{ 'x' * 1000 }}"
        "{% endfor %}{% endfor %}",
        "{{ raise_exception('no such role') }}",
    ):
        with pytest.raises(rlx.Error):
            Template(source, "model.gguf", {}).render([{"role": "user", "content": "hi"}])


def test_conversations_become_tokens(lm: rlx.lm.LanguageModel) -> None:
    ids = lm.prompt_of([{"role": "user", "content": "hello"}])
    assert [lm.tokenizer.texts[t] for t in ids] == [
        "<s>", "<|user|>", "▁hello", "<|end|>", "<|assistant|>",
    ]  # fmt: skip


# -- sampling --------------------------------------------------------------------------------------


def drawn(how: Sampling, logits: Any, count: int = 400) -> list[int]:
    sampler = Sampler(how)
    return [sampler.choose(np.array(logits, np.float32), []) for _ in range(count)]


def test_draws_follow_the_probabilities() -> None:
    p = np.array([0.5, 0.3, 0.15, 0.05])
    found = np.bincount(drawn(Sampling(temperature=1.0), np.log(p), 4000), minlength=4) / 4000
    assert np.abs(found - p).max() < 0.04  # five standard deviations of 4000 draws


def test_draws_among_many_follow_the_probabilities() -> None:
    p = np.full(1100, 1e-9)
    p[[0, 255, 256, 700, 1099]] = (0.3, 0.2, 0.1, 0.25, 0.15)
    found = np.bincount(drawn(Sampling(temperature=1.0), np.log(p), 4000), minlength=1100) / 4000
    assert np.abs(found - p).max() < 0.04  # five standard deviations of 4000 draws


def test_filters_leave_out_what_is_unlikely() -> None:
    logits = np.log([0.5, 0.3, 0.15, 0.05])
    assert set(drawn(Sampling(temperature=1.0, top_k=2), logits)) == {0, 1}
    assert set(drawn(Sampling(temperature=1.0, top_p=0.6), logits)) == {0, 1}
    assert set(drawn(Sampling(temperature=1.0, min_p=0.2), logits)) == {0, 1, 2}
    assert set(drawn(Sampling(temperature=1.0, typical_p=0.25), logits)) == {1}
    assert set(drawn(Sampling(), logits, 5)) == {0}


def test_penalties_and_biases() -> None:
    logits = np.array([2.0, 1.9, 0.0], np.float32)
    assert Sampler(Sampling(repetition_penalty=2.0)).choose(logits, [0]) == 1
    assert Sampler(Sampling(frequency_penalty=0.2)).choose(logits, [0]) == 1
    assert Sampler(Sampling(presence_penalty=0.2)).choose(logits, [0, 0]) == 1
    assert Sampler(Sampling(logit_bias={2: 9.0})).choose(logits, []) == 2


def test_parameters_out_of_range_are_errors() -> None:
    for wrong in ({"top_p": 0.0}, {"temperature": -1}, {"min_p": 1.0}, {"seed": 0, "top_k": -1}):
        with pytest.raises(rlx.Error, match=r"must be a (whole )?number"):
            Sampling(**wrong)  # type: ignore[arg-type]


# -- generation ------------------------------------------------------------------------------------


def test_greedy_text_is_that_of_double_precision(path: Path, lm: rlx.lm.LanguageModel) -> None:
    ids = lm.tokenizer.encode("hello")
    made = lm.complete(ids, max_tokens=8, logprobs=0)
    exact, expected = Evaluator(path), list(ids)
    for token in made.tokens:
        assert exact.logits(expected)[-1].argmax() == token
        expected.append(token)
    assert made.prompt_tokens == len(ids)
    scores = lm.score(expected)[len(ids) - 1 :]
    assert np.allclose(scores, made.log_probabilities, atol=1e-5)  # f32 logits of about 1


def test_a_seed_gives_the_same_text(lm: rlx.lm.LanguageModel) -> None:
    def made(seed: int) -> str:
        return lm.complete("hello", max_tokens=20, temperature=1.5, seed=seed).text

    first = made(1)
    assert made(2) != first
    with rlx.threads(1):
        assert made(1) == first


WRONG_CALLS: list[tuple[Any, str]] = [
    (lambda lm: lm.complete(3), "prompt is 3. Give a text, or a list of tokens"),
    (lambda lm: lm.complete([1.5]), r"prompt is \[1.5\]. Give a text, or a list of tokens"),
    (lambda lm: lm.complete_all("hello"), "prompts is 'hello'. Give a list of texts"),
    (lambda lm: lm.complete("hello", n=0), "n is 0. Give a whole number"),
    (lambda lm: lm.complete("hello", max_tokens="9"), "max_tokens is '9'. Give a whole number"),
    (lambda lm: lm.complete("hello", max_tokens=0), "max_tokens is 0"),
    (lambda lm: lm.complete("hello", stop=3), "stop is 3. Give a string, or a list of strings"),
    (lambda lm: lm.complete("hello", sampling={}), "sampling is {}. Give None, or a rlx.Sampling"),
    (lambda lm: lm.complete("hello", logprobs=1.5), "logprobs is 1.5. Give None, or a whole"),
    (lambda lm: lm.complete("hello", schema="x"), "schema is 'x'. Give None, or a dict"),
    (lambda lm: lm.complete("hello", context_shift=1), "context_shift is 1. Give True or False"),
    (lambda lm: lm.chat("hello"), "messages is 'hello'. Give a list such as"),
    (lambda lm: lm.prompt_of(["hello"]), "messages is .*. Give a list such as"),
    (lambda lm: lm.score(None), "text is None. Give a text"),
    (lambda lm: lm.embed([None]), r"texts is \[None\]. Give a text"),
    (lambda lm: lm.explain(tokens=0), "tokens is 0. Give a whole number"),
]


@pytest.mark.parametrize(("call", "told"), WRONG_CALLS)
def test_wrong_types_are_errors(lm: rlx.lm.LanguageModel, call: Any, told: str) -> None:
    with pytest.raises(rlx.Error, match=told):
        call(lm)


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"slots": 0}, "slots is 0. Give a whole number"),
        ({"slots": "2"}, "slots is '2'. Give a whole number"),
        ({"context": 1.5}, "context is 1.5. Give None, or a whole number"),
        ({"draft": 3}, "draft is 3. Give None, or a path"),
        ({"precision": None}, "precision is None. Give a string"),
        ({"kv": 8}, "kv is 8. Give None, or a string"),
        ({"threads": "2"}, "threads is '2'. Give None, or a whole number"),
        ({"target": 3}, "target is 3. Give None, or a string"),
        ({"cache": 3}, "cache is 3. Give a path"),
    ],
)
def test_wrong_options_are_errors(path: Path, wrong: dict[str, Any], told: str) -> None:
    with pytest.raises(rlx.Error, match=told):
        rlx.lm.load(path, **wrong)


def test_loading_a_model_never_imports_the_compiler(path: Path, tmp_path: Path) -> None:
    """Not cached, cached, and without a cache; nor does the program for embeddings."""
    require_children()
    code = (
        "import sys; import rlx; c = sys.argv[2]; "
        "lm = rlx.lm.load(sys.argv[1], cache=c if c else False); "
        "print(lm.complete('hello', max_tokens=3).tokens, lm.embed('hello').shape, "
        "'llvmlite' in sys.modules, 'rlx.pipeline' in sys.modules)"
    )
    made = [
        subprocess.run([sys.executable, "-c", code, path, cache], capture_output=True, check=True)
        for cache in (tmp_path, tmp_path, "")
    ]
    assert all(m.stdout.endswith(b"False False\n") for m in made)
    assert len({m.stdout for m in made}) == 1


@pytest.mark.parametrize(
    ("how", "held"),
    [
        ({}, "float16"),
        ({"precision": "int16"}, "float32"),
        ({"precision": "exact"}, "float32"),
        ({"precision": "int16", "kv": "f16"}, "float16"),
    ],
)
def test_caches_are_as_exact_as_what_is_computed_with_them(
    path: Path, how: dict[str, Any], held: str
) -> None:
    lm = rlx.lm.load(path, context=32, slots=1, cache=False, **how)
    assert isinstance(lm.decoder, SessionDecoder)
    assert {s.dtype.numpy.name for s in lm.decoder.session.states.values()} == {held}


def test_embeddings_are_means_of_states(path: Path) -> None:
    exact = rlx.lm.load(path, precision="exact")
    made = exact.embed(["hello", "hello hell"])
    for text, vector in zip(("hello", "hello hell"), made):
        mean = Evaluator(path).states(exact.tokens_of(text)).mean(axis=0)
        assert np.abs(vector - mean / np.linalg.norm(mean)).max() < 1e-5  # f32 sums of 128 terms
    assert np.array_equal(exact.embed("hello"), made[0])
    assert np.array_equal(exact.embed(exact.tokens_of("hello")), made[0])


def test_limits_and_closing(lm: rlx.lm.LanguageModel) -> None:
    assert lm.complete("hello", max_tokens=3).finish_reason == "length"
    with pytest.raises(rlx.Error, match=r"tokens, and the context is 128"):
        lm.generate("hello " * 200)
    with pytest.raises(rlx.Error, match="Sampling has temperature"):
        lm.generate("hello", heat=1)
    stream = lm.generate("hello", max_tokens=50)
    assert len(list(itertools.islice(stream, 3))) == 3
    stream.close()  # type: ignore[attr-defined]


def test_text_comes_in_whole_characters_and_ends_at_stops() -> None:
    stream = TextStream()
    assert [stream.add(b"\xc3"), stream.add(b"\xa9")] == ["", "é"]
    assert [stream.add(b"\xf0\x9f"), stream.rest()] == ["", "\N{REPLACEMENT CHARACTER}"]
    stream = TextStream(["END"])
    assert [stream.add(b"an E"), stream.add(b"N"), stream.add(b"Dx")] == ["an ", "", ""]
    assert stream.is_stopped
    stream = TextStream(["END"])
    assert stream.add(b"E") + stream.add(b"V") + stream.rest() == "EV"
