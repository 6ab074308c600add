"""All verbs as one command: it parses, runs the verb that is asked for, and gives an exit code."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import traceback
import warnings
from collections.abc import Callable, Generator
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.main import get_command

from rlx._version import __version__
from rlx.core.errors import Error, InputError, InternalError
from rlx.core.printable import Encodable, Printable

VERBS = (
    "bench", "cache", "calibrate", "chat", "check", "compile", "diff", "doctor", "explain", "fuzz",
    "lm-bench", "perplexity", "quantize", "run", "serve", "trace",
)  # fmt: skip
Verb = Callable[[], int]
"""A verb and its options, ready to run."""


def run(arguments: list[str]) -> int:
    """Parse, and run a verb; an encoding that lacks a character is no error."""
    with _through(Encodable):
        return _run(arguments)


@contextlib.contextmanager
def _through(kind: type[Encodable]) -> Generator[None]:
    """What is printed goes through streams of this kind."""
    out, error = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = kind(out), kind(error)  # pyright: ignore[reportAttributeAccessIssue]
    try:
        yield
    finally:
        sys.stdout, sys.stderr = out, error


def _run(arguments: list[str]) -> int:
    """Exit 0 where it worked, 1 where it did not, 2 where the call was wrong: what it names cannot
    be read, or it has to say more of the inputs. What goes wrong is one line on stderr."""
    with warnings.catch_warnings():
        warnings.showwarning = _warned
        try:
            found = get_command(app()).main(
                arguments or ["--help"], prog_name="rlx", standalone_mode=False
            )
        except typer.TyperException as error:
            return _wrong(error, arguments)
        except typer.Abort:
            return 1
        if not isinstance(found, functools.partial):
            return found or 0
        with _through(Printable):
            return _done(found, arguments)


def app() -> typer.Typer:
    """The command line as typer has it; help is drawn with rich on a terminal only."""
    made = typer.Typer(
        name="rlx",
        no_args_is_help=True,
        rich_markup_mode="rich" if sys.stdout.isatty() else None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    made.callback(help="An ML compiler and runtime that explains every decision it takes.")(_rlx)
    for name in VERBS:
        module = import_module(f"rlx.cli.{name.replace('-', '_')}")
        made.command(name, epilog=f"Example: {module.EXAMPLE}")(_deferred(module.verb))
    return made


def _print_version(is_asked: bool) -> None:
    if is_asked:
        print(f"rlx {__version__}")
        raise typer.Exit


def _rlx(
    version: Annotated[
        bool,
        typer.Option(
            "--version", is_eager=True, callback=_print_version, help="Print the version."
        ),
    ] = False,
    show_traceback: Annotated[
        bool, typer.Option("--traceback", help="Show where an error is raised.")
    ] = False,
) -> None:
    """What is asked of rlx itself. `--traceback` is read where errors are caught."""
    del version, show_traceback


def _deferred(verb: Callable[..., int]) -> Callable[..., Verb]:
    """The verb's options, bound and not yet run: its errors are reported here, not by typer."""

    @functools.wraps(verb)
    def bound(**options: Any) -> Verb:
        return functools.partial(verb, **options)

    return bound


def _done(verb: Verb, arguments: list[str]) -> int:
    try:
        code = verb()
        sys.stdout.flush()
    except BrokenPipeError:  # the reader has had enough, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return 130
    except typer.TyperException as error:
        return _wrong(error, arguments)
    except Exception as error:
        return _failed(error, arguments)
    return code


def _wrong(error: typer.TyperException, arguments: list[str]) -> int:
    """A call that makes no sense, and where to read what does."""
    who = _who(arguments)
    text = _line(error.format_message()).replace("Value error, ", "").rstrip(".")
    print(f"{who}: {text}. See {who} --help", file=sys.stderr)
    return 2


def _failed(error: Exception, arguments: list[str]) -> int:
    code = 2 if isinstance(error, InputError) else 1
    if "--traceback" in arguments:
        traceback.print_exception(error)
        return code
    known = isinstance(error, Error | OSError)
    text = str(error if known else InternalError(f"{type(error).__name__}: {error}"))
    is_bug = not known or isinstance(error, InternalError)
    where = " (rlx --traceback … shows where)" if is_bug else ""
    print(f"{_who(arguments)}: {_line(text)}{where}", file=sys.stderr)
    return code


def _who(arguments: list[str]) -> str:
    """`rlx` and the verb, if there is one."""
    verb = next((a for a in arguments if not a.startswith("-")), "")
    return f"rlx {verb}" if verb in VERBS else "rlx"


def _line(text: str) -> str:
    return " ".join(text.split())


def _warned(message: Warning | str, *_: Any) -> None:
    print(f"rlx: warning: {_line(str(message))}", file=sys.stderr)
