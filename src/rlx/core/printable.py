"""Text for terminals: what a name of a model cannot do to one.

Escape sequences recolour, hide or rewrite what is on a terminal, and marks of direction reorder
it. Characters of both kinds are written as Python writes them, `\\x1b`, `\\u202e`; those that an
encoding lacks are written in letters that it has.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from typing import Any

JOINERS = "\u200c\u200d"
"""Between letters of one script, and the parts of one emoji."""
_PLAIN = re.compile(r"[ -~\n\t]*")
_SPELLED = {
    "→": "->", "←": "<-", "⇒": "=>", "↔": "<->", "µ": "u", "μ": "u", "×": "x", "·": ".", "÷": "/",
    "…": "...", "–": "-", "—": "-", "−": "-", "±": "+-", "≤": "<=", "≥": ">=", "≠": "!=", "≈": "~",
    "∞": "inf", "²": "^2", "³": "^3", "⌈": "ceil(", "⌉": ")", "⌊": "floor(", "⌋": ")", "√": "sqrt",
    "‘": "'", "’": "'", "“": '"', "”": '"', "•": "*", "✓": "+", "✗": "-", "│": "|", "─": "-",
    "━": "-", "┼": "+", "├": "+", "└": "+", "█": "#", "░": ".", "\u00a0": " ", "\u202f": " ",
    "∈": "in", "∑": "sum", "∏": "prod", "σ": "sigma", "π": "pi", "ε": "eps", "α": "alpha",
    "β": "beta", "λ": "lambda", "Δ": "delta", "°": "deg", "½": "1/2", "■": "#", "▏": "|",
}  # fmt: skip


def printable(text: str) -> str:
    """The text with each control character escaped but ends of lines and tabs."""
    if _PLAIN.fullmatch(text):
        return text
    return "".join(c if c in "\n\t" or not _is_control(c) else _escaped(c) for c in text)


def one_line(text: str) -> str:
    """The same, with ends of lines escaped: a name is part of a line."""
    return printable(text).replace("\n", "\\n").replace("\t", "\\t")


def encodable(text: str, encoding: str) -> str:
    """The text with what an encoding lacks in letters that it has, character by character."""
    if text.isascii():
        return text
    try:
        text.encode(encoding)
        return text
    except UnicodeEncodeError:
        return "".join(_encodable(c, encoding) for c in text)
    except LookupError:
        return text


def _encodable(char: str, encoding: str) -> str:
    try:
        char.encode(encoding)
    except UnicodeEncodeError:
        return _SPELLED.get(char) or _escaped(char)
    return char


def _is_control(char: str) -> bool:
    return unicodedata.category(char) in ("Cc", "Cf", "Cs", "Zl", "Zp") and char not in JOINERS


def _escaped(char: str) -> str:
    """As in Python, and from DEL on as in JSON, which has no other escapes and may be printed."""
    if char < "\x7f":
        return f"\\x{ord(char):02x}"
    units = char.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[i : i + 4]}" for i in range(0, len(units), 4))


class Encodable:
    """A text stream that writes in the encoding of the stream below it whatever it is given."""

    def __init__(self, raw: Any) -> None:
        self.raw = raw

    def write(self, text: str) -> int:
        self.raw.write(encodable(text, getattr(self.raw, "encoding", None) or "utf-8"))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.raw, name)


class Printable(Encodable):
    """A text stream that escapes control characters."""

    def write(self, text: str) -> int:
        self.raw.write(printable(text))
        return len(text)


def below(stream: Any) -> Any:
    """The stream that escapes nothing, for what draws by escape sequences of its own."""
    return stream.raw if isinstance(stream, Printable) else stream
