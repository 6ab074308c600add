"""The exceptions a user can meet. Each names what, where, why, and what next."""

from __future__ import annotations

from rlx.core.printable import printable


class Error(Exception):
    """Base of every error rlx raises on purpose. Names in its text may be a model's."""

    def __str__(self) -> str:
        return printable(super().__str__())


class GraphError(Error, ValueError):
    """A graph that has no meaning: wrong rank, range, dtype, name, or text."""


class UnknownNameError(GraphError, AttributeError):
    """A method that is neither the builder's own nor an op or block."""


class CallError(Error, TypeError):
    """A call with arguments that a public function does not take."""


class InternalError(Error):
    """An inconsistency that rlx finds in its own work: a bug of rlx, not of the model."""

    def __str__(self) -> str:
        note = "This is a bug of rlx: please report it."
        text = super().__str__()
        return text if text.endswith(note) else f"{text.rstrip('.')}. {note}"


class InputError(Error):
    """What a user gave of their own does not do: a file, the size of a dim, an input."""


class OutOfMemoryError(Error, MemoryError):
    """More memory is needed than there is."""


class UnsupportedError(Error, NotImplementedError):
    """A valid graph that rlx, or the chosen target, cannot do yet."""


class OpenSizesError(UnsupportedError):
    """A program cannot be shown to be right for every size of named dims; for one size it can."""


class UnknownFormatError(InputError, UnsupportedError):
    """A file of a kind that rlx does not read."""


class MisfitError(InputError):
    """Inputs that rlx made up do not fit a model; others may: the error says how to give them."""
