"""Chat templates: messages to the text that a model was trained on, by jinja2 in a sandbox.

A template comes out of a file, so it is not trusted: it can call nothing but methods of texts,
lists and dicts, changes nothing that it is given, and is limited in steps, sizes and time
(`template_environment.py`, `template_bounds.py`).
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from rlx.core.errors import Error, UnsupportedError

MAX_TEMPLATE_BYTES, MAX_TEXT_BYTES = 1 << 17, 1 << 24
MAX_RANGE = 1 << 16
Message = Mapping[str, Any]


class Template:
    """A compiled chat template, and the names of special tokens that it may use."""

    def __init__(self, source: str, where: str, tokens: Mapping[str, str]) -> None:
        if len(source) > MAX_TEMPLATE_BYTES:
            raise Error(f"{where}: its chat template has {len(source):,} letters, too many.")
        self._where, self._tokens = where, tokens
        jinja = _package()
        try:
            environment = _environment()
            self.takes_tools = "tools" in _variables(environment, source)
            self._template = environment.from_string(source)
        except jinja.TemplateError as error:
            raise Error(f"{where}: its chat template cannot be read: {error}.") from None
        except Exception as error:  # of compiling what nobody would write
            why = f"{error}" or type(error).__name__
            raise Error(f"{where}: its chat template cannot be read: {why[:200]}.") from None

    def render(self, messages: Sequence[Message], *, tools: Sequence[Any] | None = None) -> str:
        """The text of a conversation, up to where the answer begins."""
        from rlx.lm.template_bounds import Exceeded, budget

        jinja = _package()
        given = {"messages": [dict(m) for m in messages], "add_generation_prompt": True}
        if tools is not None:
            given["tools"] = list(tools)
        try:
            with budget(len(messages)):
                made = "".join(self._template.generate(**given, **self._tokens))
        except Exceeded as error:
            raise Error(f"{self._where}: its chat template is not rendered: {error}.") from None
        except jinja.TemplateError as error:
            raise Error(f"{self._where}: its chat template refuses this: {error}.") from None
        except (ArithmeticError, LookupError, TypeError, ValueError, AttributeError,
                RecursionError, MemoryError, AssertionError) as error:  # fmt: skip
            why = f"{error}" or type(error).__name__
            raise Error(f"{self._where}: its chat template fails: {why[:500]}.") from None
        if len(made) > MAX_TEXT_BYTES:
            raise Error(f"{self._where}: its chat template makes too long a text.")
        return made


def _environment() -> Any:
    from rlx.lm.template_environment import Environment

    functions = {
        "raise_exception": _refuse,
        "strftime_now": lambda form: datetime.datetime.now().strftime(str(form)[:200]),
        "range": _range,
    }
    return Environment({"tojson": _json}, functions)  # jinja2's own escapes what HTML lacks


def _variables(environment: Any, source: str) -> set[str]:
    """Names that a template is given."""
    from jinja2 import meta

    return meta.find_undeclared_variables(environment.parse(source))


def _json(value: Any, indent: int | None = None, **how: Any) -> str:
    return json.dumps(
        value, ensure_ascii=False, indent=indent, sort_keys=bool(how.get("sort_keys"))
    )


def _refuse(message: str) -> NoReturn:
    import jinja2

    raise jinja2.TemplateError(str(message)[:500])


def _range(*bounds: int) -> range:
    made = range(*bounds)
    if len(made) > MAX_RANGE:
        raise ValueError(f"a range of {len(made):,}")
    return made


def _package() -> Any:
    try:
        import jinja2
    except ImportError:
        raise UnsupportedError(
            "chat templates need the package jinja2: pip install 'rlx[lm]'"
        ) from None
    return jinja2
