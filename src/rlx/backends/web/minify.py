"""JavaScript without comments and the white space that it does not need.

Sources end their statements with semicolons, so that a line's end never does.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

_TOKEN = re.compile(
    r"""(?P<space>\s+|//[^\n]*|/\*.*?\*/)|(?P<word>[\w$]+)|(?P<text>"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*')
    |(?P<template>`)|(?P<sign>.)""",
    re.DOTALL | re.VERBOSE,
)
_REGEX = re.compile(r"/(?:\\.|\[(?:\\.|[^\]\\])*\]|[^/\\\[])+/[a-z]*")
_OPERAND = re.compile(r"[\w$)\]}\"'`]$")
"""The end of what a slash divides; behind anything else it begins a regular expression."""
_WORD = re.compile(r"[\w$]")


def minified(text: str) -> str:
    """The same program in fewer characters: a line ends only behind a block."""
    made: list[str] = []
    last, gap = "", ""
    for token in _tokens(text):
        if _is_space(token):
            gap += token
            continue
        if last == "," and token in {"}", "]", ")"}:
            made.pop()
        made += [_between(last, token, gap), token]
        last, gap = token, ""
    return f"{''.join(made).strip()}\n"


def _between(last: str, token: str, gap: str) -> str:
    """What white space becomes."""
    if "\n" in gap and last == "}":
        return "\n"
    is_needed = _WORD.match(last[-1:]) and _WORD.match(token)
    return " " if gap and (is_needed or (last == token and token in "+-/")) else ""


def _is_space(token: str) -> bool:
    return token.isspace() or token.startswith(("//", "/*"))


def _tokens(text: str) -> Iterator[str]:
    at, last = 0, ""
    while at < len(text):
        found = _TOKEN.match(text, at)
        assert found is not None
        end = found.end()
        if found["template"]:
            end = _template_end(text, at + 1)
        elif found["sign"] == "/" and not _OPERAND.search(last):
            regex = _REGEX.match(text, at)
            assert regex is not None, text[at : at + 40]
            end = regex.end()
        token = text[at:end]
        last = last if _is_space(token) else token
        yield token
        at = end


def _template_end(text: str, at: int) -> int:
    """Behind the closing backtick of a template, which may hold expressions with others."""
    while text[at] != "`":
        if text[at] == "\\":
            at += 2
        elif text.startswith("${", at):
            at = _expression_end(text, at + 2)
        else:
            at += 1
    return at + 1


def _expression_end(text: str, at: int) -> int:
    depth = 0
    while depth or text[at] != "}":
        depth += {"{": 1, "}": -1}.get(text[at], 0)
        if text[at] == "`":
            at = _template_end(text, at + 1)
        elif text[at] in "\"'":
            at = text.index(text[at], at + 1) + 1
        else:
            at += 1
    return at + 1
