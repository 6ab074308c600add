"""The exceptions a user can meet. Each names what, where, why, and what next."""

from __future__ import annotations


class Error(Exception):
    """Base of every error rlx raises on purpose."""


class GraphError(Error, ValueError):
    """A graph that has no meaning: wrong rank, range, dtype, name, or text."""


class UnknownNameError(GraphError, AttributeError):
    """A method that is neither the builder's own nor an op or block."""


class CallError(Error, TypeError):
    """A call with arguments that a public function does not take."""


class OutOfMemoryError(Error, MemoryError):
    """More memory is needed than there is."""


class UnsupportedError(Error, NotImplementedError):
    """A valid graph that rlx, or the chosen target, cannot do yet."""


class MisfitError(Error):
    """Inputs that rlx made up do not fit a model; others may: the error says how to give them."""
