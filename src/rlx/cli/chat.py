"""`rlx chat`: a conversation with a language model in the terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rlx.cli.options import LANGUAGE_MODEL, Activations, KvCache, Threads, reading
from rlx.core.errors import Error

if TYPE_CHECKING:
    from rlx.lm import LanguageModel

EXAMPLE = "rlx chat model.gguf --temperature 0.7"
COMMANDS = """/reset      begin anew
/system …   begin anew, with these instructions
/retry      another answer to the last question
/stats      speed and length so far
/quit       end (so does Ctrl-D)"""


def verb(
    model: Annotated[str, typer.Argument(metavar="MODEL", help=LANGUAGE_MODEL)],
    threads: Threads = None,
    context: Annotated[
        int | None, typer.Option(help="Tokens of the conversation at most. (default: 4096)", min=16)
    ] = None,
    max_tokens: Annotated[int, typer.Option(help="Tokens of an answer at most.", min=1)] = 512,
    temperature: Annotated[
        float | None,
        typer.Option(help="0 takes the likeliest token. (default: the model's own, else 0)", min=0),
    ] = None,
    top_k: Annotated[
        int | None,
        typer.Option(help="Draw among so many; 0: all. (default: the model's own, else 40)", min=0),
    ] = None,
    top_p: Annotated[
        float | None,
        typer.Option(help="Draw among the likeliest of this mass. (default: the model's own, else "
                          "0.95)"),
    ] = None,
    min_p: Annotated[
        float | None,
        typer.Option(help="Leave out what is less likely, relative to the likeliest. (default: the "
                          "model's own, else 0.05)"),
    ] = None,
    seed: Annotated[int, typer.Option(help="Of draws.", min=0)] = 0,
    system: Annotated[str, typer.Option(help="Instructions to begin with.")] = "",
    precision: Activations = "int16",
    kv: KvCache = None,
) -> int:  # fmt: skip
    """Talk to a language model.

    Questions are read from the terminal, or from a pipe, a line each; empty lines are skipped.
    Ctrl-C ends an answer. The exit status is 1 if a question of a pipe got no answer.
    """
    from rlx import lm
    from rlx.lm.sampling_defaults import FILTERED

    named = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p}
    sampling: dict[str, Any] = {k: v for k, v in named.items() if v is not None} | {"seed": seed}
    lm.Sampling(**sampling)  # what is wrong is known before the model is read
    with reading():
        made = lm.load(model, threads=threads, context=context, precision=precision, kv=kv)
    how = {"max_tokens": max_tokens, "temperature": 0.0, **FILTERED, **made.stated_sampling}
    return _Conversation(made, {**how, **sampling}, system).run()


@dataclass(slots=True)
class _Conversation:
    """Messages so far, how the next answer is made, and whether all questions got one."""

    lm: LanguageModel
    how: dict[str, Any]
    system: str = ""
    messages: list[dict[str, str]] = field(default_factory=list[dict[str, str]])
    seconds: float = 0.0
    tokens: int = 0
    is_answered: bool = True

    def run(self) -> int:
        is_person = sys.stdin.isatty()
        if is_person:
            print(f"{self.lm.name}, {self._drawn()}. /help lists commands.")
        self._begin()
        for line in _lines(is_person):
            if line == "/quit":
                break
            self._commanded(line) if line.startswith("/") else self._asked(line)
        return int(not is_person and not self.is_answered)

    def _drawn(self) -> str:
        """How tokens are chosen."""
        from rlx.lm.sampling_defaults import sampling_text

        if not self.how["temperature"]:
            return "the likeliest tokens"
        return sampling_text(self.how)

    def _begin(self) -> None:
        self.messages = [{"role": "system", "content": self.system}] if self.system else []

    def _commanded(self, line: str) -> None:
        name, _, rest = line.partition(" ")
        if name == "/reset":
            self._begin()
        elif name == "/system":
            self.system = rest.strip()
            self._begin()
        elif name == "/retry" and self.messages and self.messages[-1]["role"] == "assistant":
            self.messages.pop()
            self.how["seed"] += 1
            self._asked(self.messages.pop()["content"])
        elif name == "/stats":
            rate = self.tokens / self.seconds if self.seconds else 0.0
            print(f"{self.tokens} tokens answered, {rate:.1f} a second")
        else:
            print(COMMANDS)

    def _asked(self, question: str) -> None:
        self.messages.append({"role": "user", "content": question})
        try:
            text = self._answered()
        except Error as error:
            self.messages.pop()
            self.is_answered = False
            print(f"rlx chat: {error}", file=sys.stderr)
            return
        self.messages.append({"role": "assistant", "content": text})

    def _answered(self) -> str:
        """What was answered, also where Ctrl-C ended it."""
        parts: list[str] = []
        start = time.perf_counter()
        try:
            for piece in self.lm.chat(self.messages, **self.how):
                parts.append(piece.text)
                self.tokens += len(piece.tokens)
                print(piece.text, end="", flush=True)
        except KeyboardInterrupt:
            pass
        self.seconds += time.perf_counter() - start
        print()
        return "".join(parts)


def _lines(is_person: bool) -> Iterator[str]:
    """What is typed or piped, without empty lines."""
    while True:
        try:
            line = input("> " if is_person else "")
        except EOFError:
            return
        except KeyboardInterrupt:
            print()
            return
        if line.strip():
            yield line.strip()
