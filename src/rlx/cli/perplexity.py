"""`rlx perplexity MODEL TEXT`: how well a language model predicts a text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from rlx.cli import options
from rlx.cli.progress import progress

if TYPE_CHECKING:
    from rlx.lm.perplexity import Divergence, Perplexity

EXAMPLE = "rlx perplexity model.gguf text.txt --against exact"


def verb(
    model: Annotated[str, typer.Argument(metavar="MODEL", help=options.LANGUAGE_MODEL)],
    text: Annotated[str, typer.Argument(metavar="TEXT", help="A file of UTF-8 text.")],
    against: Annotated[
        str | None,
        typer.Option(metavar="BASE", help="Another model of the same vocabulary, or another "
                                          "precision: how far predictions are from its (KL)."),
    ] = None,
    precision: options.Activations = "file",
    kv: options.KvCache = None,
    window: Annotated[int, typer.Option(min=4, help="Tokens of a window.")] = 512,
    windows: Annotated[int | None, typer.Option(min=1, help="Windows at most.")] = None,
    threads: options.Threads = None,
    target: options.RunOn = None,
    is_json: options.Json = False,
) -> int:  # fmt: skip
    """Perplexity of a text, and divergence from a more precise model.

    The text is cut into windows, each computed by itself, and the second half of each is scored, as
    llama.cpp does. Lower is better; models of other vocabularies do not compare.
    """
    from rlx import lm
    from rlx.lm.perplexity import divergence, perplexity

    given = options.read_text(text)
    how: dict[str, Any] = {"threads": threads, "target": target, "context": window + 1, "slots": 1}
    with options.reading():
        made = lm.load(model, precision=precision, kv=kv, **how)
        base = _base(model, against, precision, how)
    with progress(f"scoring {text}") as report:
        rest: dict[str, Any] = {
            "window": window, "windows": windows, "done": lambda n, of: report(n, of, ""),
        }  # fmt: skip
        found = (
            perplexity(made, given, **rest)
            if base is None
            else divergence(made, base, given, **rest)
        )
    _print(model, against, found, is_json)
    return 0


def _base(model: str, against: str | None, precision: str, how: dict[str, Any]) -> Any:
    """What predictions are compared with: the same file in another precision, or another file."""
    from rlx import lm
    from rlx.lm.model import PRECISIONS

    if against is None:
        return None
    if against in PRECISIONS:
        return lm.load(model, precision=against, **how)
    return lm.load(against, precision=precision, **how)


def _print(model: str, base: str | None, found: Perplexity | Divergence, is_json: bool) -> None:
    from rlx.lm.perplexity import Perplexity

    if isinstance(found, Perplexity):
        facts = {"model": model, **_scores(found)}
        options.print_json(facts) if is_json else print(_line(model, found))
        return
    if is_json:
        options.print_json({
            "model": model, **_scores(found.model), "base": base,
            "base_perplexity": found.base.value, "kl_mean": found.mean, "kl_error": found.error,
            "kl_median": found.quantile(0.5), "kl_99": found.quantile(0.99),
            "kl_max": found.quantile(1), "same_top": found.same_top,
        })  # fmt: skip
        return
    print(_line(model, found.model))
    print(_line(str(base), found.base))
    print(f"KL divergence {found.mean:.3e} ± {found.error:.1e} (median {found.quantile(0.5):.2e}, "
          f"99 % {found.quantile(0.99):.2e}, greatest {found.quantile(1):.2e})")  # fmt: skip
    print(f"same likeliest token at {found.same_top:.2%}")


def _scores(found: Perplexity) -> dict[str, Any]:
    return {"perplexity": found.value, "error": found.error, "tokens": found.tokens}


def _line(model: str, found: Perplexity) -> str:
    return f"{model}: perplexity {found.value:.4f} ± {found.error:.4f} ({found.tokens:,} tokens)"
