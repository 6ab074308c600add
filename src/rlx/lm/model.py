"""Text from a language model: `lm = rlx.lm.load("model.gguf")`, then `lm.generate`, `lm.chat`."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import numpy as np

from rlx.core.arguments import (
    COUNT,
    FLAG,
    MAPPING,
    NONE,
    PATH,
    SECONDS,
    TEXT,
    TEXTS,
    WHOLE,
    Kind,
    instance,
    takes,
)
from rlx.core.errors import Error
from rlx.core.intervals import whole
from rlx.core.pages import return_freed_memory
from rlx.core.public_calls import public_class
from rlx.frontends.gguf.caches import CacheFormat, CacheKind
from rlx.frontends.gguf.model import GgufModel
from rlx.frontends.gguf.model import load as load_gguf
from rlx.lm.constraint import Constraint, Constraints
from rlx.lm.decoder import LOGITS, ArgumentDecoder, Decoder, SessionDecoder
from rlx.lm.drafting import Drafter, DraftModel, PromptLookup
from rlx.lm.embedding import Embedder
from rlx.lm.engine import Engine
from rlx.lm.generation import Generation, Piece, Request
from rlx.lm.sampling import Sampling, log_probabilities
from rlx.lm.sampling_defaults import stated_sampling
from rlx.lm.template import Message, Template
from rlx.lm.tokenizer import Tokenizer, tokenizer_of
from rlx.ops.op import Array
from rlx.runtime.child_session import ChildSession

if TYPE_CHECKING:
    from rlx.explain.report import Report
    from rlx.lm.step_report import StepReports

DEFAULT_CONTEXT, DEFAULT_SLOTS = 4096, 4
PRECISIONS = {
    "file": "int8-activations", "int16": "int16-activations", "exact": None, "bf16": "bf16",
}  # fmt: skip
"""What products are carried out in, as `rlx.compile` calls it."""
KV_FORMATS = get_args(CacheFormat)
Prompt = str | Sequence[int]
PROMPT = Kind("a text, or a list of tokens", lambda v: isinstance(v, str) or _are_tokens(v))
PROMPTS = Kind("a list of texts, or of lists of tokens", lambda v: _are_all(v, PROMPT.accepts))
MESSAGES = Kind(
    'a list such as [{"role": "user", "content": "…"}]', lambda v: _are_all(v, MAPPING.accepts)
)
ITEMS = Kind("a list", lambda v: isinstance(v, list | tuple))


@public_class
@dataclass(frozen=True, slots=True)
class Answer:
    """All pieces of an answer."""

    text: str
    tokens: tuple[int, ...]
    log_probabilities: tuple[float, ...]
    finish_reason: str
    prompt_tokens: int
    alternatives: tuple[tuple[tuple[int, float], ...], ...] = ()


@public_class
class LanguageModel:
    """A compiled decoder with its tokenizer and chat template. What a prompt has in common with
    earlier ones at its beginning is not computed again. Several threads may ask at once."""

    def __init__(
        self,
        model: GgufModel,
        tokenizer: Tokenizer,
        decoder: Decoder,
        context: int,
        embedder: Embedder,
        drafter: Drafter | None = None,
        sampling: Mapping[str, Any] | None = None,
    ) -> None:
        self.name, self.context = model.name, context
        self.stated_sampling: Mapping[str, Any] = dict(sampling or {})
        """How its authors draw, as its file states it: fields of `Sampling`, for requests that
        state others or none."""
        self.tokenizer = tokenizer
        self.executable, self.decoder = decoder.executable, decoder
        self._embedder = embedder
        self.engine = Engine(decoder, self.tokenizer, context, drafter)
        self.template = _template_of(model, self.tokenizer)

    def generate(self, prompt: Prompt, **how: Any) -> Iterator[Piece]:
        """Pieces of text behind a prompt, as they are made. Text is tokenized as it stands, with
        the token of a beginning where the model wants one. `how` is that of `request`. Closing the
        iterator ends the work."""
        return self.engine.pieces(self.request(prompt, **how))

    @takes(messages=MESSAGES, tools=NONE | ITEMS)
    def chat(
        self, messages: Sequence[Message], *, tools: Sequence[Any] | None = None, **how: Any
    ) -> Iterator[Piece]:
        """Pieces of the answer to a conversation: [{"role": "user", "content": "…"}]."""
        return self.generate(self.prompt_of(messages, tools=tools), **how)

    @takes(prompt=PROMPT)
    def complete(self, prompt: Prompt, **how: Any) -> Answer:
        """A whole answer, once it is there."""
        return self.complete_all([prompt], **how)[0]

    @takes(prompts=PROMPTS, n=COUNT)
    def complete_all(self, prompts: Sequence[Prompt], *, n: int = 1, **how: Any) -> list[Answer]:
        """Whole answers to several prompts, computed together; `n` of each, with seeds that follow
        one another. Each is the answer that its prompt gets alone."""
        requests = [r for p in prompts for r in with_seeds(self.request(p, **how), n)]
        made: list[Generation] = []
        try:
            for request in requests:
                made.append(self.engine.submit(request))
            while not all(g.is_done for g in made):
                self.engine.step()
        finally:
            for generation in made:
                generation.cancel()
        return [_answer(g) for g in made]

    @takes(
        prompt=PROMPT, max_tokens=WHOLE, stop=TEXT | TEXTS, sampling=NONE | instance(Sampling),
        logprobs=NONE | WHOLE, schema=NONE | MAPPING, regex=NONE | TEXT, grammar=NONE | TEXT,
        context_shift=FLAG, ignore_end=FLAG,
    )  # fmt: skip
    def request(
        self,
        prompt: Prompt,
        *,
        max_tokens: int = 256,
        stop: str | Sequence[str] = (),
        sampling: Sampling | None = None,
        logprobs: int | None = None,
        schema: Mapping[str, Any] | None = None,
        regex: str | None = None,
        grammar: str | None = None,
        context_shift: bool = False,
        ignore_end: bool = False,
        **how: Any,
    ) -> Request:
        """What is asked for, checked. `how` are the fields of `Sampling`, if that is not given;
        those that are left out are as the file states them (`stated_sampling`), or as `Sampling`
        has them: the likeliest token.
        `logprobs` asks for log-probabilities, and for so many of the likeliest tokens. `schema`,
        `regex` or `grammar` is the form of the answer: a JSON schema, a regular expression, a
        grammar in Lark's notation. At the end of the context `context_shift` forgets the middle;
        otherwise an answer ends there."""
        if sampling is not None and how:
            raise Error(f"give sampling=, or {', '.join(how)}, not both.")
        if max_tokens < 1:
            raise Error(f"max_tokens is {max_tokens}: at least 1.")
        if logprobs is not None and logprobs < 0:
            raise Error(f"logprobs is {logprobs}: at least 0.")
        stops = (stop,) if isinstance(stop, str) else tuple(stop)
        sampling = sampling or _sampling({**self.stated_sampling, **how})
        if sampling.logit_bias:
            self._require_tokens(sampling.logit_bias)
        return Request(
            prompt=tuple(self._checked(self.tokens_of(prompt))),
            max_tokens=max_tokens,
            stops=stops,
            sampling=sampling,
            logprobs=logprobs,
            constraint=self._constraint(schema=schema, regex=regex, grammar=grammar),
            shifts_context=context_shift,
            ignores_end=ignore_end,
        )

    @takes(prompt=PROMPT)
    def tokens_of(self, prompt: Prompt) -> list[int]:
        """The tokens of a text; tokens as they are."""
        if isinstance(prompt, str):
            return self.tokenizer.encode(prompt)
        return [int(t) for t in prompt]

    @takes(messages=MESSAGES, tools=NONE | ITEMS)
    def prompt_of(
        self, messages: Sequence[Message], *, tools: Sequence[Any] | None = None
    ) -> list[int]:
        """The tokens of a conversation, by the model's chat template."""
        if self.template is None:
            raise Error(f"{self.name} has no chat template: it continues texts (lm.generate).")
        text = self.template.render(messages, tools=tools)
        return self.tokenizer.encode(text, special=True, end=False)

    @takes(text=PROMPT)
    def score(self, text: Prompt) -> Array:
        """The log-probability of each token of a text after the first, given those before it."""
        ids = self.tokens_of(text)
        if len(ids) < 2:
            raise Error("a text to be scored has at least two tokens.")
        following = iter(self._checked(ids)[1:])
        made: list[float] = []

        def take(rows: Array) -> None:
            made.extend(float(log_probabilities(r)[t]) for r, t in zip(rows, following))

        self.engine.logits(ids, take)
        return np.array(made)

    @takes(texts=PROMPT | PROMPTS)
    def embed(self, texts: Prompt | Sequence[Prompt]) -> Array:
        """A vector of unit length for each text, pooled as the file says, or by the mean; of one
        text one vector. The first call compiles a program of its own for it."""
        is_one = isinstance(texts, str) or all(isinstance(t, int | np.integer) for t in texts)
        listed: list[Any] = [texts] if is_one else list(texts)
        made = [self._embedder.embed(self._checked(self.tokens_of(t))) for t in listed]
        return made[0] if is_one else np.stack(made) if made else np.zeros((0, 0), np.float32)

    @takes(tokens=COUNT, sequences=COUNT, depth=WHOLE, measure=FLAG, seconds=SECONDS)
    def explain(
        self,
        *,
        tokens: int = 1,
        sequences: int = 1,
        depth: int = 0,
        measure: bool = False,
        seconds: float = 1.0,
    ) -> Report:
        """Where the time and the bytes of a step go: so many tokens of each of some sequences,
        behind `depth` cached ones. Kernels are grouped by part of a layer, with what they read of
        weights and of the cache, and the least time that memory allows for it. With `measure`
        kernels, calls and memory bandwidth are timed, for about `seconds` each."""
        reports = self.step_reports(tokens, sequences, depth)
        return reports.measured(seconds) if measure else reports.planned()

    def step_reports(self, tokens: int, sequences: int, depth: int) -> StepReports:
        """Reports of a step, and its trace."""
        from rlx.lm.step_report import StepReports

        vocabulary = len(self.tokenizer.texts)
        return StepReports(self.decoder, vocabulary, self.context, tokens, sequences, depth)

    @cached_property
    def longest_token(self) -> int:
        """Characters of a token at most."""
        return max(map(len, self.tokenizer.texts), default=1)

    @cached_property
    def constraints(self) -> Constraints:
        """Forms of answers, for this vocabulary."""
        return Constraints(self.tokenizer)

    def _constraint(self, **forms: Any) -> Constraint | None:
        given = {name: form for name, form in forms.items() if form is not None}
        if len(given) > 1:
            raise Error(f"give one of {', '.join(given)}: an answer has one form.")
        return next((getattr(self.constraints, n)(f) for n, f in given.items()), None)

    def _require_tokens(self, ids: Collection[int]) -> None:
        count = len(self.tokenizer.texts)
        if not 0 <= min(ids) <= max(ids) < count:
            raise Error(f"a token is not one of the {count:,} of {self.name}.")

    def _checked(self, ids: list[int]) -> list[int]:
        if not ids:
            raise Error("the prompt has no token. Give a text that is not empty.")
        self._require_tokens(ids)
        if len(ids) >= self.context:
            raise Error(
                f"the prompt has {len(ids):,} tokens, and the context is {self.context:,}. Shorten "
                "it, or load the model with a larger context=."
            )
        return ids

    def __repr__(self) -> str:
        return f"<LanguageModel {self.name!r}: context {self.context:,}>"


@takes(
    path=PATH,
    context=NONE | COUNT,
    slots=COUNT,
    draft=NONE | PATH,
    precision=TEXT,
    kv=NONE | TEXT,
    sampling=NONE | instance(Sampling),
)
def load(
    path: str | os.PathLike[str],
    *,
    context: int | None = None,
    slots: int = DEFAULT_SLOTS,
    draft: str | os.PathLike[str] | None = None,
    precision: str = "file",
    kv: str | None = None,
    threads: int | None = None,
    target: str | None = None,
    cache: Any = None,
    sampling: Sampling | None = None,
) -> LanguageModel:
    """The language model of a `.gguf` file, compiled. `context` is how many tokens a prompt and its
    answer have at most: 4096, or fewer if the model was trained on fewer; `slots` how many answers
    are computed at once. `draft` guesses tokens that are then verified: "lookup" from the prompt,
    or the file of a smaller model with the same vocabulary. `precision` "file" rounds what
    quantised weights are multiplied with to int8, 32 elements to a scale, where the target has
    products of bytes, the CPU, and "int16" to the sum of two such roundings: next to exact, with
    prompts at 0.6 of the speed; "exact" computes in f32, "bf16" rounds f32 weights and what they
    are multiplied with. `kv` is what keys and values are cached in, where the target has sessions:
    "f16", "bf16", "f32", as "exact" and "int16" have it, for f16 is off by as much as the latter,
    or "q8_0", int8 with a scale for each 32 elements, in half of f16's memory. `threads`, `target`
    and `cache` are as `rlx.compile` has them. `sampling` is how tokens are drawn for requests that
    do not say, instead of as the file states it. What is not in the cache is compiled in a child
    process, so that memory is the same whether it was compiled or found."""
    session = ChildSession(target, threads=threads, cache=cache)
    executable = partial(session.compile, precision=_precision(precision, target))
    caches: CacheKind = "session" if session.target.holds_state else "arguments"
    opened = partial(load_gguf, caches=caches, cached=kv_format(kv, precision))
    with session.expecting(Path(path).stem):
        model = opened(Path(path), context, at_most=DEFAULT_CONTEXT)
        stated = stated_sampling(model.file) if sampling is None else dataclasses.asdict(sampling)
        tokenizer = tokenizer_of(model.file)
        session.meanwhile = partial(_preload, tokenizer)
        decoder = _decoder(model, executable, slots)
    compiled = partial(_decoder, executable=executable, slots=slots)
    drafter = None if draft is None else _drafter(draft, model, opened, compiled)
    embedder = Embedder(model, executable)
    return_freed_memory()
    return LanguageModel(model, tokenizer, decoder, model.context, embedder, drafter, stated)


def _are_all(values: Any, accepts: Callable[[Any], bool]) -> bool:
    return isinstance(values, list | tuple) and all(map(accepts, values))  # pyright: ignore[reportUnknownArgumentType]


def _are_tokens(values: Any) -> bool:
    is_list = isinstance(values, list | tuple | range | np.ndarray)
    return is_list and all(whole(t) is not None for t in values)  # pyright: ignore[reportUnknownVariableType]


def with_seeds(request: Request, n: int) -> list[Request]:
    """A request as often as it is asked for: draws of each have their own seed."""
    first = request.sampling.seed
    seeds = (dataclasses.replace(request.sampling, seed=first + i) for i in range(n))
    return [dataclasses.replace(request, sampling=s) for s in seeds]


def _precision(name: str, target: str | None) -> str | None:
    """The compile option of a precision of language models."""
    if name not in PRECISIONS:
        raise Error(f"precision {name!r}: one of {', '.join(PRECISIONS)}.")
    is_exact = name in ("file", "int16") and target not in (None, "cpu")
    return None if is_exact else PRECISIONS[name]


def _preload(tokenizer: Tokenizer) -> None:
    """What the first text will need. What is wrong is raised when there is one."""
    with suppress(Error):
        tokenizer.exact(" ")


def _decoder(model: GgufModel, executable: Callable[..., Any], slots: int) -> Decoder:
    """A decoder of what is compiled from a model."""
    if model.module.states:
        window = max((w for w in model.architecture.windows if w is not None), default=0)
        return SessionDecoder(executable(model, at_end=[LOGITS]), slots, window)
    return ArgumentDecoder(executable(model), model.architecture, slots)


def kv_format(name: str | None, precision: str = "file") -> CacheFormat:
    """What keys and values are cached in, where `name` asks for nothing else."""
    wanted: Any = name or ("f32" if precision in ("exact", "int16") else "f16")
    if wanted not in KV_FORMATS:
        raise Error(f"kv is {wanted!r}: one of {', '.join(KV_FORMATS)}.")
    return wanted


def _drafter(
    draft: str | os.PathLike[str],
    model: GgufModel,
    opened: Callable[..., GgufModel],
    compiled: Callable[[GgufModel], Decoder],
) -> Drafter:
    if draft == "lookup":
        return PromptLookup()
    small = opened(Path(draft), None, at_most=model.context)
    key = "tokenizer.ggml.tokens"
    if list(small.metadata.get(key, ())) != list(model.metadata.get(key, ())):
        raise Error(f"{small.file.name} has another vocabulary than {model.file.name}.")
    return DraftModel(compiled(small), small.context)


def _answer(generation: Generation) -> Answer:
    pieces = generation.pieces
    if generation.error is not None:
        raise generation.error
    return Answer(
        "".join(p.text for p in pieces),
        tuple(t for p in pieces for t in p.tokens),
        tuple(v for p in pieces for v in p.log_probabilities),
        pieces[-1].finish_reason or "stop",
        len(generation.request.prompt),
        tuple(a for p in pieces for a in p.alternatives),
    )


def _sampling(how: dict[str, Any]) -> Sampling:
    try:
        return Sampling(**how)
    except TypeError as error:
        known = ", ".join(Sampling.__dataclass_fields__)
        raise Error(f"{error}. Sampling has {known}.") from None


def _template_of(model: GgufModel, tokenizer: Tokenizer) -> Template | None:
    source = model.metadata.get("tokenizer.chat_template")
    if not isinstance(source, str):
        return None
    tokens = {"bos_token": "bos_token_id", "eos_token": "eos_token_id"}
    named = {name: tokenizer.text_of(key) for name, key in tokens.items()}
    return Template(source, model.name, named)
