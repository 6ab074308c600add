"""Memory of a launch: buffers of the grid and shared memory of its blocks, every access checked.

An access outside of its array, at an index that its width does not divide, of shared memory that
was never written, of words that an asynchronous copy is still filling, or that races with another
thread's, ends the launch with an error that names both threads, the word and the nodes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rlx.program.errors import LaunchError, located, placed
from rlx.program.interpret.order import Order
from rlx.program.interpret.shadow import Race, Shadow
from rlx.program.nodes import Node
from rlx.program.program import Program

Array = np.ndarray[Any, Any]
VECTOR_BYTES = 16
"""The most that a thread accesses at once."""


@dataclass(frozen=True, slots=True)
class BufferSpan:
    """Where a buffer is, and the first of its elements that may be touched."""

    address: int = 0
    first: int = 0


@dataclass(slots=True)
class Memory:
    """One array: a buffer, or a shared array of all blocks that run at once, one after another."""

    name: str
    data: Array
    count: int
    """Elements, of one block's where it is shared."""
    shadow: Shadow | None
    is_set: Array | None = None
    """Which words of shared memory were written."""
    pending: Array | None = None
    """The node whose asynchronous copy fills a word, and 0 for none."""
    unfenced: Array | None = None
    """The thread, counted from 1, whose write to an operand of products no fence is behind."""
    span: BufferSpan = BufferSpan()

    @property
    def is_shared(self) -> bool:
        return self.is_set is not None


@dataclass(slots=True)
class Accesses:
    """Checks and shadows of accesses, for one program."""

    program: Program
    order: Order
    nodes: dict[Node, int] = field(default_factory=dict[Node, int])
    listed: list[Node] = field(default_factory=list[Node])

    def __post_init__(self) -> None:
        self.listed = list(self.program.nodes)
        self.nodes = {n: i for i, n in enumerate(self.listed)}

    def words(
        self,
        memory: Memory,
        node: Node,
        index: Array,
        base: Array | int,
        threads: Array,
        width: int,
    ) -> Array:
        """The words of each thread's access, one row a thread."""
        outside = (index < memory.span.first) | (index + width > memory.count)
        if outside.any():
            at = int(np.flatnonzero(outside)[0])
            raise self.error(
                node,
                f"{self.who(int(threads[at]))} is at index {int(index[at])} of {memory.name}, "
                f"which has elements {memory.span.first} to {memory.count - 1}; mask it or fix the "
                "index.",
            )
        if width > 1 and (index % width).any():
            at = int(np.flatnonzero(index % width)[0])
            raise self.error(
                node,
                f"{self.who(int(threads[at]))} accesses {width} elements of {memory.name} from "
                f"{int(index[at])} on, which is no multiple; align it or use a narrower access.",
            )
        self._aligned(memory, node, width)
        return (index + base)[:, None] + np.arange(width)

    def _aligned(self, memory: Memory, node: Node, width: int) -> None:
        """Is the address of the buffer a multiple of the vector, or of the widest that is accessed
        at once?"""
        vector = min(width * memory.data.itemsize, VECTOR_BYTES)
        if memory.span.address % vector:
            why = f"{memory.name} is at address {memory.span.address}, no multiple of {vector}"
            raise self.error(node, f"{why}; align it or use a narrower access.")

    def read(self, memory: Memory, node: Node, words: Array, threads: Array) -> Array:
        """The words' values; one row a thread."""
        self._settled(memory, node, words, threads)
        if memory.is_set is not None and not memory.is_set[words].all():
            at = tuple(np.argwhere(~memory.is_set[words])[0])
            raise self.error(
                node,
                f"{self.who(int(threads[at[0]]))} reads {memory.name}"
                f"[{int(words[at]) % memory.count}], which was never written; store it before.",
            )
        if memory.shadow is not None:
            race = memory.shadow.read(self.order, *self._flat(words, threads), self.nodes[node])
            self._reported(memory, node, race)
        return memory.data[words]

    def write(
        self, memory: Memory, node: Node, words: Array, threads: Array, values: Array
    ) -> None:
        self._settled(memory, node, words, threads)
        if memory.shadow is not None:
            race = memory.shadow.write(self.order, *self._flat(words, threads), self.nodes[node])
            self._reported(memory, node, race)
        self.fill(memory, words, values)
        self._unfence(memory, words, threads)

    def _unfence(self, memory: Memory, words: Array, threads: Array) -> None:
        if memory.unfenced is not None:
            memory.unfenced[words] = threads[:, None] + 1

    def fenced(self, memory: Memory, node: Node, words: Array) -> None:
        """A product is about to read words."""
        if memory.unfenced is None or not memory.unfenced[words].any():
            return
        thread = int(memory.unfenced[words].max()) - 1
        why = f"{self.who(thread)} wrote an operand in {memory.name}, with no proxy fence behind it"
        raise self.error(node, f"{why}; add one before the barrier or arrival.")

    def fill(self, memory: Memory, words: Array, values: Array) -> None:
        """Without any check."""
        memory.data[words] = values
        if memory.is_set is not None:
            memory.is_set[words] = True

    def begin(self, memory: Memory, node: Node, words: Array, threads: Array) -> None:
        """An asynchronous copy starts to fill words."""
        assert memory.pending is not None
        self._settled(memory, node, words, threads)
        if memory.shadow is not None:
            race = memory.shadow.write(self.order, *self._flat(words, threads), self.nodes[node])
            self._reported(memory, node, race)
        memory.pending[words] = self.nodes[node] + 1

    def end(self, memory: Memory, words: Array, threads: Array, values: Array, node: Node) -> None:
        """The copy is done, as far as the thread that waited for it can tell."""
        assert memory.pending is not None
        memory.pending[words] = 0
        self.fill(memory, words, values)
        self._unfence(memory, words, threads)
        if memory.shadow is not None:
            flat, each = self._flat(words, threads)
            memory.shadow.set_write(flat, each, self.order.clock(each), self.nodes[node])

    def write_by_engine(
        self,
        memory: Memory,
        node: Node,
        words: Array,
        threads: Array,
        engines: Array,
        clocks: Array,
        values: Array,
    ) -> None:
        """Words that a thread has the copy engine of an mbarrier write."""
        self._settled(memory, node, words, threads)
        if memory.shadow is not None:
            flat, each = self._flat(words, threads)
            self._reported(memory, node, memory.shadow.check_write(self.order, flat, each))
            ids, stamps = (np.repeat(a, words.shape[1]) for a in (engines, clocks))
            memory.shadow.set_write(flat, ids, stamps, self.nodes[node])
        self.fill(memory, words, values)
        if memory.unfenced is not None:
            memory.unfenced[words] = 0

    def _flat(self, words: Array, threads: Array) -> tuple[Array, Array]:
        return words.reshape(-1), np.repeat(threads, words.shape[1])

    def _settled(self, memory: Memory, node: Node, words: Array, threads: Array) -> None:
        if memory.pending is None or not memory.pending[words].any():
            return
        at = tuple(np.argwhere(memory.pending[words])[0])
        copy = self.listed[int(memory.pending[words][at]) - 1]
        raise self.error(
            node,
            f"{self.who(int(threads[at[0]]))} touches {memory.name}"
            f"[{int(words[at]) % memory.count}], which the copy of {placed(self.program, copy)} is "
            "still filling; wait for its group and use a barrier.",
        )

    def _reported(self, memory: Memory, node: Node, race: Race | None) -> None:
        if race is None:
            return
        did = {True: "writes", False: "reads"}
        other = self.listed[race.other_node]
        place = f"{memory.name}[{race.word % memory.count if memory.count else race.word}]"
        advice = (
            "put a barrier between them"
            if memory.is_shared
            else "give each word to one thread, or use two launches"
        )
        raise self.error(
            node,
            f"race on {place}: {self.who(race.thread)} {did[race.is_write]} it, and "
            f"{self.who(race.other)} {did[race.was_write]} it at {placed(self.program, other)}, "
            f"with nothing between that orders them; {advice}.",
        )

    def who(self, thread: int) -> str:
        if thread < 0:
            return "a copy engine"
        block, own = divmod(thread, self.program.block)
        return f"thread {own} of block {block}"

    def error(self, node: Node | None, why: str) -> LaunchError:
        return LaunchError(located(self.program, node, why))
