"""`rlx doctor`: what is installed, what is missing, and how to get it."""

from __future__ import annotations

from rlx.cli import options

EXAMPLE = "rlx doctor --json"


def verb(is_json: options.Json = False) -> int:
    """Show targets, packages, devices, measured prices and the cache, and what to install.

    Exit 1 if not even one target runs natively.
    """
    from rlx.runtime.doctor import examine

    found = examine()
    if is_json:
        options.print_json(found.as_dict())
    else:
        print(found)
    is_native = any(t.is_here and t.name != "reference" for t in found.targets)
    return 0 if is_native else 1
