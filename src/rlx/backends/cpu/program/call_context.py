"""The words of a call's context, which is all that native code is given.

    i32 run(ptr context)

A word is 8 bytes. `NEEDS` points to the bytes of the arena and of the weights, then of each output
its bytes and dims, then of each input its dims, and at last 0 if the sizes of named dims are in
their ranges. They are written in mode `NEED`; a call writes the outputs' dims anew, as some may be
measured in it.
"""

from __future__ import annotations

from enum import IntEnum


class Word(IntEnum):
    """Where each part of the context is."""

    MODE = 0
    SYMBOLS = 1
    """Address of the sizes of named dims, an i64 each; those that are measured are written."""
    NEEDS = 2
    ARENA = 3
    WEIGHTS = 4
    EXTERNALS = 5
    """Address of the addresses of inputs, params and outputs."""
    POOL = 6
    """The workers, or null where the call runs alone."""
    REGION = 7
    """`i32 region(context, function, buffers, sizes, units, grain, scratch, scratch_bytes)`."""
    THREADS = 8
    """How many workers may take part, which is how many parts of scratch there are."""
    FAILED = 9
    """The number of the step that failed, and behind 32 bits its code."""
    HOST = 10
    """`i32 host(context, step, buffers)`: steps that only the host can do."""
    CHANGED = 11
    """In a prologue, address of a byte for each of its steps: is it to be done? Null means all."""
    LOG = 12
    """Where a timed build writes its times, or null; other builds do not look."""

    POLL = 13
    """`i32 poll(ptr)`, called with the address of this word: lets Python handle signals, now and
    then; not 0 where one raised, and from then on. Kernels are given that address, too."""
    SYSTEM = 14
    """The words that the threads of the process share, also where the call runs alone."""
    POLLED = 15
    """When Python was asked last, in nanoseconds; negative where a handler has raised."""


NUM_WORDS = 16


class Mode(IntEnum):
    """What a run does."""

    NEED = 0
    PROLOGUE = 1
    CALL = 2
    STEP = 3
    """A call up to the Epilogue."""
    FINISH = 4
    """The Epilogue of a call, in the arena that a step left."""
