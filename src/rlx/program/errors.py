"""The errors of SIMT programs: each names the program, the node, why, and what next."""

from __future__ import annotations

from rlx.core.errors import Error
from rlx.program.nodes import Node
from rlx.program.program import Program
from rlx.program.text import described


class ProgramError(Error):
    """A program that no GPU may run."""


class LaunchError(ProgramError):
    """What went wrong when a program was interpreted."""


def located(program: Program, node: Node | None, why: str) -> str:
    """A message that says where: nodes are numbered in the order of the text."""
    if node is None:
        return f"program {program.name}: {why}"
    return f"program {program.name}, {placed(program, node)}: {why}"


def placed(program: Program, node: Node) -> str:
    number = next((i for i, n in enumerate(program.nodes) if n is node), -1)
    return f"node {number} ({described(node)})"
