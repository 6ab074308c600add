"""`rlx VERB …`, also as `python -m rlx`. Each verb is one file of `rlx.cli`."""

from __future__ import annotations

import argparse
import os
import sys
from importlib import import_module

from rlx._version import __version__

VERBS = {
    "bench": "time a model, beside onnxruntime if asked",
    "check": "what of a model runs natively, what is lowered, what is missing",
    "explain": "compile a model and say what was decided, and why",
    "fuzz": "random graphs through every pipeline",
    "run": "run a model once, on given or random inputs",
}


def main(argv: list[str] | None = None) -> int:
    """Exit 0 where it worked, 1 where it did not, 2 where the call was wrong."""
    arguments = sys.argv[1:] if argv is None else argv
    lines = "\n".join(f"  {verb:10s} {what}" for verb, what in VERBS.items())
    parser = argparse.ArgumentParser(
        "rlx",
        usage="rlx VERB [options]",
        epilog=f"verbs:\n{lines}\n\nrlx VERB --help says more",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description="An ML compiler and runtime that explains every decision it takes.",
    )
    parser.add_argument("--version", action="version", version=f"rlx {__version__}")
    parser.add_argument("verb", choices=VERBS)
    chosen = parser.parse_args(arguments[:1] or ["--help"])
    return run(chosen.verb, arguments[1:])


def run(verb: str, arguments: list[str]) -> int:
    """One verb; an rlx error, or a file that cannot be written, is one line on stderr."""
    from rlx.errors import Error

    try:
        code = import_module(f"rlx.cli.{verb}").main(arguments)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader has had enough, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (Error, OSError) as error:
        print(f"rlx {verb}: {error}", file=sys.stderr)
        return 1
    return code


if __name__ == "__main__":
    sys.exit(main())
