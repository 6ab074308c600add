"""Sessions: the states of a program, kept from call to call.

    session = exe.session(context=2048)
    y = session(x)              # reads states and updates them in place
    session.step(x)             # the same without what is asked for at the end
    y = session.finish()        # that, of the last step
    session.reset()

A program with states is a function of inputs and states. A session holds the states, in memory of
the target that a call writes where it is: it copies none of it. A fork shares them until one of the
two is called.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from rlx._version import __version__
from rlx.core.arguments import COUNT, INPUTS, NONE, PATH, SECONDS, TEXT, TEXTS, WHOLE, takes
from rlx.core.arrays import as_array
from rlx.core.errors import Error
from rlx.core.files import writing
from rlx.core.not_copied import NotCopied
from rlx.core.public_calls import public_class
from rlx.core.sections import Sections, packed
from rlx.core.shape import DimBinding, Shape
from rlx.core.units import size_text
from rlx.ops.op import Array
from rlx.runtime.call_history import CallHistory, Overwritten
from rlx.runtime.named_calls import NamedCalls, given_of

if TYPE_CHECKING:
    import os

    from rlx.explain.roofline import KernelTimes
    from rlx.explain.trace import Trace
    from rlx.runtime.executable import Inputs
    from rlx.runtime.loaded_program import LoadedProgram

T = TypeVar("T")
KIND = "session"
MAX_SHOWN = 4
"""States that are listed."""


@dataclass(frozen=True, slots=True)
class SessionMemory:
    """The bytes of a session's states, by name; those of forks are shared until one is called."""

    states: Mapping[str, int]
    is_shared: bool

    @property
    def state_bytes(self) -> int:
        return sum(self.states.values())


class _Held:
    """States in memory of a program, and the sessions that hold them."""

    def __init__(self, states: Sequence[Any]) -> None:
        self.states = tuple(states)
        self.holders: weakref.WeakSet[StateSession] = weakref.WeakSet()


@public_class
class StateSession(NotCopied, NamedCalls):
    """The states of a program at named sizes. One call at a time."""

    why_not_copied = (
        "holds memory that calls write, so it is neither copied nor pickled. session.fork() is a "
        "copy, and session.save(path) writes its states."
    )

    def __init__(
        self, loaded: LoadedProgram, sizes: Mapping[str, int], *, history: int = 0
    ) -> None:
        self._loaded, self.sizes, self._history = loaded, dict(sizes), history
        self._leaves = loaded.interface.states
        self._memory = loaded.program.states
        self._busy = threading.Lock()
        self._undo = CallHistory(loaded) if history else None
        self._past: list[Sequence[Overwritten]] = []
        self._last: Any = None
        """What the last step has left for `finish`, while states are as it left them."""
        self._take(self._new())

    def _new(self) -> _Held:
        bound = ((n.shape.bind(self.sizes), n.init) for n in self._leaves)
        return _Held([self._memory.filled(shape, init) for shape, init in bound])

    # -- what it is ----------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """The name of the model."""
        return self._loaded.name

    @property
    def inputs(self) -> dict[str, Shape | None]:
        """Name → shape, in the order of positional arguments."""
        return dict(self._loaded.inputs)

    @property
    def outputs(self) -> dict[str, Shape | None]:
        """Name → shape, in order."""
        return dict(self._loaded.outputs)

    @property
    def states(self) -> dict[str, Shape]:
        """Name → shape."""
        return {n.name: n.shape.bind(self.sizes) for n in self._leaves}

    @property
    def memory(self) -> SessionMemory:
        """The bytes of its states, by name."""
        held = {n.name: s.nbytes for n, s in zip(self._leaves, self._held.states)}
        return SessionMemory(held, len(self._held.holders) > 1)

    @takes(name=TEXT)
    def state(self, name: str) -> Array:
        """The value of a state, which cannot be written. The next call changes it, where the host
        has the memory; of a device it is a copy."""
        number = self._number(name)
        with self._alone():
            found = self._memory.read(self._held.states[number])
        found.setflags(write=False)
        return found

    @takes(name=TEXT)
    def set_state(self, name: str, value: Any) -> None:
        """Give a state a value: an array of its dtype and dims."""
        number = self._number(name)
        shape, array = self.states[name], as_array(value, f"state {name!r}")
        if array.dtype != shape.dtype.numpy or array.shape != shape.dims:
            raise self._error(f"state {name!r} is {shape}, got {array.dtype}{list(array.shape)}.")
        with self._changed():
            self._past.clear()
            self._memory.write(self._own()[number], array)

    def _number(self, name: str) -> int:
        names = [n.name for n in self._leaves]
        self._check_names("state", {name: None}, names)
        return names.index(name)

    def __repr__(self) -> str:
        shown = [f"{k}: {v}" for k, v in self.states.items()]
        more = len(shown) - MAX_SHOWN
        held = ", ".join(shown[:MAX_SHOWN]) + (f" and {more} more" if more > 0 else "")
        total = size_text(self.memory.state_bytes)
        shared = ", shared with a fork" if self.memory.is_shared else ""
        return f"<StateSession {self.name!r} ({held}), {total}{shared}>"

    # -- calls ---------------------------------------------------------------------------------

    def __call__(self, *arrays: Any, **named: Any) -> Any:
        """Run on inputs in order or by keyword, as an executable does; states are updated in
        place. A call that fails leaves states as they were, but for rows that were appended; on
        GPUs and TPUs, which report at the end what went wrong, all updates may have been made, and
        so they may where Ctrl-C ends a call. With a history such a call is undone."""
        out = self._outs(named.pop("out", None))
        given = self._in_order(arrays, named) if named or not arrays else arrays
        return self._ran(given, lambda inputs: self._loaded.call(inputs, out))

    def step(self, *arrays: Any, **named: Any) -> Any:
        """A call up to its Epilogue, on inputs in order or by keyword: states are updated, and the
        outputs are those that are not asked for at the end, the output itself where it is one, ()
        where there are none. `finish` gives the others."""
        given = self._in_order(arrays, named) if named or not arrays else arrays

        def run(inputs: Sequence[Any]) -> Any:
            made, self._last = self._loaded.step(inputs)
            return given_of(made)

        return self._ran(given, run)

    def finish(self) -> Any:
        """The outputs that are asked for at the end, of the last step: the output itself where it
        is one. It updates nothing, and may be called again, until states change."""
        with self._alone():
            if self._last is None:
                raise self._error(
                    "there is nothing to finish: no step was made since states have changed. Call "
                    "session.step first."
                )
            return given_of(self._loaded.finish(self._last))

    @property
    def step_outputs(self) -> tuple[str, ...]:
        """The names of what `step` gives, in order."""
        return self._loaded.interface.names(is_late=False)

    @property
    def finish_outputs(self) -> tuple[str, ...]:
        """The names of what `finish` gives, in order."""
        return self._loaded.interface.names(is_late=True)

    def _ran(self, given: Sequence[Any], run: Callable[[Sequence[Any]], T]) -> T:
        """A call on inputs, with states behind them; where there is a history, one that can be
        undone."""
        with self._changed():
            states, inputs = self._own(), self._loaded.counted(given)
            if self._undo is None:
                return run([*inputs, *states])
            overwritten = self._undo.before(inputs, states)
            try:
                made = run([*inputs, *states])
            except BaseException:
                with suppress(Error):  # of a state that an engine has consumed
                    self._undo.restore(overwritten, states)
                raise
            self._past.append(overwritten)
            del self._past[: -self._history]
            return made

    @contextmanager
    def _changed(self) -> Generator[None]:
        """States change: there is nothing to finish any more."""
        with self._alone():
            self._last = None
            yield

    @contextmanager
    def _alone(self) -> Generator[None]:
        if not self._busy.acquire(blocking=False):
            raise self._error(
                "a call on this session is under way in another thread. Wait for it, or fork the "
                "session: session.fork()."
            )
        try:
            yield
        finally:
            self._busy.release()

    def _own(self) -> Sequence[Any]:
        """The states, which no other session reads."""
        if len(self._held.holders) > 1:
            pairs, copied = zip(self._leaves, self._held.states), self._memory.copied
            self._take(_Held([copied(s) if leaf.update else s for leaf, s in pairs]))
        return self._held.states

    def _take(self, held: _Held) -> None:
        if hasattr(self, "_held"):
            self._held.holders.discard(self)
        self._held = held
        held.holders.add(self)

    # -- what a call takes ---------------------------------------------------------------------

    @takes(inputs=INPUTS, seconds=SECONDS, cached_rows=NONE | WHOLE)
    def profile(
        self, inputs: Inputs, *, seconds: float = 1.0, cached_rows: int | None = None
    ) -> KernelTimes:
        """The time of each kernel on these inputs and on the states of now, of which the kernels
        change a copy. `cached_rows` is how many rows of its caches a call reads, besides its own:
        what bytes are counted at."""
        from rlx.explain.roofline import profile

        how: dict[str, Any] = {"seconds": seconds, "cached_rows": cached_rows}
        return profile(self._loaded, self._tried(inputs), **how)

    @takes(inputs=INPUTS, calls=COUNT)
    def trace(self, inputs: Inputs, *, calls: int = 3) -> Trace:
        """The compile and some calls, kernel by kernel, as of an executable; on a copy of its
        states."""
        from rlx.explain.trace import trace

        return trace(self._loaded, self._tried(inputs), calls=calls)

    def _tried(self, inputs: Inputs) -> list[Any]:
        """Inputs, and copies of the states."""
        pairs = zip(self.inputs.items(), self._ordered(inputs))
        arrays = [
            as_array(a, f"input {n!r}", None if s is None else s.dtype) for (n, s), a in pairs
        ]
        return [*arrays, *map(self._memory.copied, self._held.states)]

    # -- earlier and other states --------------------------------------------------------------

    def reset(self) -> None:
        """States as they were at first."""
        with self._changed():
            self._take(self._new())
            self._past.clear()

    @takes(source=WHOLE, target=WHOLE, count=WHOLE, names=NONE | TEXTS)
    def copy_rows(
        self, source: int, target: int, count: int, names: Sequence[str] | None = None
    ) -> None:
        """Copy the first rows of an entry to another, in all states that rows are appended to, or
        in those of these names: the entries of their first axis, and the rows along the second."""
        with self._changed():
            self._past.clear()
            for state in self._appended(names, count, (source, target)):
                self._memory.copy_rows(state, source, target, count)

    @takes(entry=WHOLE, first=WHOLE, count=WHOLE, names=NONE | TEXTS)
    def shift_rows(
        self, entry: int, first: int, count: int, names: Sequence[str] | None = None
    ) -> None:
        """Move rows of an entry, from one on, to its beginning, in the same states."""
        with self._changed():
            self._past.clear()
            last = first + count if min(first, count) >= 0 else min(first, count)
            for state in self._appended(names, last, (entry,)):
                self._memory.shift_rows(state, entry, first, count)

    def _appended(
        self, names: Sequence[str] | None, rows: int, entries: Sequence[int]
    ) -> list[Any]:
        """States that rows are appended to, all of which have such rows and entries."""
        self._check_names("state", dict.fromkeys(names or ()), list(self.states))
        found: list[Any] = []
        for leaf, shape, state in zip(self._leaves, self.states.values(), self._own()):
            if leaf.update != "append" or (names is not None and leaf.name not in names):
                continue
            count, most, *_ = (*shape.static_dims, 0, 0)
            if not (all(0 <= e < count for e in entries) and 0 <= rows <= most):
                listed = " and ".join(map(str, entries))
                raise self._error(f"there are no {rows} rows of {listed} in {shape}.")
            found.append(state)
        return found

    def fork(self) -> StateSession:
        """Another session with the same states, which are copied when one of the two is called."""
        with self._alone():
            made = object.__new__(StateSession)
            made._loaded, made.sizes, made._history = self._loaded, self.sizes, self._history
            made._leaves, made._memory = self._leaves, self._memory
            made._undo, made._past, made._last = self._undo, list(self._past), None
            made._busy = threading.Lock()
            made._take(self._held)
            return made

    @takes(calls=COUNT)
    def rewind(self, calls: int = 1) -> None:
        """Undo calls, as far back as `exe.session(history=)` says: states have the bits that they
        had, and what `append` wrote over is there again. States that were set, copied, shifted or
        loaded since cannot be what they were before."""
        with self._changed():
            made = len(self._past)
            if self._undo is None or calls > made:
                more = f" Keep more: exe.session(history={calls})." if calls > self._history else ""
                kept = f"what {made} have overwritten is kept.{more}"
                raise self._error(f"{calls} calls are to be undone, and {kept}")
            for _ in range(calls):
                self._undo.restore(self._past[-1], self._own())
                del self._past[-1]

    # -- files ---------------------------------------------------------------------------------

    @takes(path=PATH)
    def save(self, path: str | os.PathLike[str]) -> None:
        """Write all states to a file, which `load` of a session of the same sizes reads."""
        with self._alone():
            held = {k: self._memory.read(s) for k, s in zip(self.states, self._held.states)}
            head = {"kind": KIND, "version": __version__, "name": self.name, **self._described()}
            sections = {k: _bytes(a).data for k, a in held.items()}
            with writing(path) as file:
                file.writelines(packed(head, sections))

    @takes(path=PATH)
    def load(self, path: str | os.PathLike[str]) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """States as a file has them."""
        file = Sections.open(path)
        if file.head.get("kind") != KIND or file.head.get("states") != self._described()["states"]:
            raise self._error(
                f"{file.name} holds other states than {', '.join(map(str, self.states.values()))}. "
                "Open a session of the sizes that it was saved with."
            )
        parts = [np.frombuffer(file.section(name), np.uint8) for name in self.states]
        with self._changed():
            shapes = self.states.values()
            for state, shape, raw in zip(self._own(), shapes, parts, strict=True):
                value = raw.view(shape.dtype.numpy).reshape(shape.static_dims)
                self._memory.write(state, value)
            self._past.clear()

    def _described(self) -> dict[str, Any]:
        return {"states": [[n, s.dtype.value, *s.static_dims] for n, s in self.states.items()]}


def open_session(loaded: LoadedProgram, sizes: Mapping[str, Any], history: Any) -> StateSession:
    """A session of a program: sizes of the named dims of its states, and how many calls can be
    undone, if any."""
    (NONE | COUNT).check("history", history)
    symbols = {d.name: d for n in loaded.interface.states for d in n.shape.dynamic_symbols}
    if not loaded.interface.states:
        raise Error(f"{loaded.name}: it has no states, so a session would hold nothing. Call it.")
    unknown = [n for n in sizes if n not in symbols]
    missing = [n for n in symbols if n not in sizes]
    if unknown or missing:
        what = f"no size for {missing[0]}" if missing else f"its states have no dim {unknown[0]}"
        example = ", ".join(f"{n}={symbols[n].min or 1}" for n in symbols)
        raise Error(f"{loaded.name}: {what}. Open a session as exe.session({example}).")
    bound = DimBinding.of(sizes).checked(symbols.values())
    return StateSession(loaded, bound, history=history or 0)


def _bytes(array: Array) -> Array:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)
