"""Lexer of the textual IR. Whatever is not a token is an error with its line."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

from rlx.core.errors import GraphError

_TOKEN = re.compile(
    r"""(?P<space>(?:[ \t\r\n]+|\#[^\n]*)+)
      | (?P<string>"(?:[^"\\\x00-\x1f]|\\.)*")
      | (?P<float>\d+\.\d+(?:[eE][+-]?\d+)?|\d+[eE][+-]?\d+)
      | (?P<int>\d+)
      | (?P<name>[A-Za-z_][A-Za-z0-9_.]*)
      | (?P<mark>//|\.\.|[()\[\]{},:=+\-*%])""",
    re.VERBOSE | re.ASCII,
)
_MAX_DIGITS = 400


@dataclass(frozen=True, slots=True)
class Token:
    """One word of the text, and the line it stands on."""

    kind: str
    text: str
    line: int

    def __str__(self) -> str:
        if self.kind == "end":
            return "the end of the text"
        return self.text if len(self.text) <= 40 else self.text[:37] + "..."


class Tokens:
    """A text as tokens, read from the front. Errors name the source, the line and the reason."""

    def __init__(self, text: str, source: str = "text") -> None:
        self.source = source
        self._tokens = _tokens(text, source)
        self._at = 0

    @property
    def next(self) -> Token:
        """The token to be taken."""
        return self._tokens[self._at]

    @property
    def line(self) -> int:
        return self.next.line

    def error(self, reason: str, line: int | None = None) -> GraphError:
        """What to raise for a reason at a line (the next token's, if none is given)."""
        return GraphError(f"{self.source}:{self.line if line is None else line}: {reason}")

    def take(self) -> Token:
        token = self.next
        if token.kind != "end":
            self._at += 1
        return token

    def sees(self, *texts: str) -> bool:
        """Is the next token one of these marks or names?"""
        return self.next.kind in ("mark", "name") and self.next.text in texts

    def accept(self, text: str) -> bool:
        """Take the next token if it is `text`."""
        if not self.sees(text):
            return False
        self._at += 1
        return True

    def expect(self, text: str) -> None:
        if not self.accept(text):
            raise self.error(f"expected {text!r}, found {self.next}")

    def name(self, what: str) -> str:
        """A bare name, such as an op's."""
        if self.next.kind != "name":
            raise self.error(f"expected {what}, found {self.next}")
        return self.take().text

    def string(self) -> str:
        """A string in JSON's spelling."""
        if self.next.kind != "string":
            raise self.error(f"expected a string in quotes, found {self.next}")
        try:
            value: str = json.loads(self.next.text)
            value.encode()
        except ValueError:
            raise self.error(f"{self.next} is not a string in JSON's spelling") from None
        self.take()
        return value

    def natural(self) -> int:
        """A whole number that fits 64 bits, without a sign."""
        if self.next.kind != "int":
            raise self.error(f"expected a whole number, found {self.next}")
        digits = self.next.text.lstrip("0") or "0"
        if len(digits) > 20 or int(digits) >= 2**64:
            raise self.error(f"{self.next} does not fit 64 bits")
        self.take()
        return int(digits)

    def integer(self) -> int:
        sign = -1 if self.accept("-") else 1
        value = sign * self.natural()
        if value < -(2**63):
            raise self.error(f"{value} does not fit 64 bits")
        return value

    def real(self) -> float:
        """A float in Python's spelling, inf and nan included; a whole number is one too."""
        sign = -1.0 if self.accept("-") else 1.0
        if self.sees("inf", "nan"):
            return sign * float(self.take().text)
        if self.next.kind not in ("float", "int") or len(self.next.text) > _MAX_DIGITS:
            raise self.error(f"expected a number, found {self.next}")
        value = float(self.next.text)
        if value == float("inf"):
            raise self.error(f"{self.next} is past the range of f64; infinity is written inf")
        self.take()
        return sign * value


def _tokens(text: str, source: str) -> list[Token]:
    found: list[Token] = []
    at, line = 0, 1
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise GraphError(f"{source}:{line}: {text[at]!r} starts nothing that rlx text knows")
        kind, word, at = str(match.lastgroup), match[0], match.end()
        if kind == "space":
            line += word.count("\n")
        else:
            found.append(Token(kind, word, line))
    return [*found, Token("end", "", line)]
