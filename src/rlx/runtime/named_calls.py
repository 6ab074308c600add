"""Calls by keyword and by name, for what is called on arrays in order."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

import numpy as np

from rlx.core.arguments import COUNT, NONE, PATH, WHOLE, takes
from rlx.core.errors import Error
from rlx.core.public_calls import public_class

if TYPE_CHECKING:
    import os

    from rlx.core.shape import Shape
    from rlx.ops.op import Array
    from rlx.runtime.executable import Executable


@public_class
class NamedCalls(ABC):
    """What has named inputs and outputs, and is called on arrays in order."""

    @property
    @abstractmethod
    def name(self) -> str:
        """What errors call it."""

    @property
    @abstractmethod
    def inputs(self) -> Mapping[str, Shape | None]:
        """Name → shape, in the order of positional arguments."""

    @property
    @abstractmethod
    def outputs(self) -> Mapping[str, Shape | None]:
        """Name → shape, in order."""

    @staticmethod
    @takes(threads=NONE | COUNT, device=NONE | WHOLE)
    def load(
        path: str | os.PathLike[str], *, threads: int | None = None, device: int | None = None
    ) -> Executable:
        """The program in a file that `save` wrote, as `rlx.load` reads it: it holds machine code,
        and loading it is running it."""
        from rlx.runtime.artefact_file import read

        PATH.check("the path", path)
        return read(path, threads, device)

    @abstractmethod
    def __call__(self, *arrays: Any, **named: Any) -> Any:
        """Run on inputs in order, or by keyword: the output, or a tuple of them. The keyword `out`
        is no input but where results are written."""

    def run(
        self,
        inputs: Mapping[str, Any],
        outputs: Sequence[str] | None = None,
        *,
        out: Mapping[str, Any] | Sequence[Any] | Any = None,
    ) -> dict[str, Array]:
        """Run on inputs by name: outputs by name, all or those of `outputs` in that order. `out`
        has arrays that results are written into, by name or in the order of all outputs."""
        names, given = list(self.outputs), self._in_order((), inputs)
        wanted = names if outputs is None else self._asked(outputs, names)
        made = self(*given, out=out)
        results = dict(zip(names, made if isinstance(made, tuple) else (made,)))
        return {n: results[n] for n in wanted}

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """The error of a method that others have: nothing is found here."""
            if name.startswith("_"):
                raise AttributeError(name)
            near = get_close_matches(name, [n for n in dir(type(self)) if n[0] != "_"], 1)
            hint = f"Did you mean {near[0]}? " if near else ""
            raise UnknownCall(
                f"an executable has no {name!r}. {hint}It runs by exe(*arrays), exe(name=array) or "
                "exe.run(feed); rlx.InferenceSession has onnxruntime's calls."
            )

    def _in_order(self, arrays: Sequence[Any], named: Any) -> tuple[Any, ...]:
        """Inputs in order, of which some are given in order and the others by name."""
        names = list(self.inputs)
        self._check_names("input", named, names)
        given = dict(zip(names, arrays))
        if len(arrays) > len(names) or (arrays and not named and len(arrays) < len(names)):
            raise self._error(wrong_count(names, arrays))
        twice = [n for n in named if n in given]
        if twice:
            raise self._error(f"{listed(twice)} is given by position and by name. Give it once.")
        given.update(named)
        missing = [n for n in names if n not in given]
        if missing:
            hint = " The keyword out is for results: give it by position." * ("out" in missing)
            raise self._error(f"no value for {listed(missing)}. Inputs: {listed(names)}.{hint}")
        return tuple(given[n] for n in names)

    def _ordered(self, inputs: Any) -> tuple[Any, ...]:
        """One array is the one input, not its rows those of several."""
        if isinstance(inputs, Mapping):
            return self._in_order((), inputs)
        is_list = isinstance(inputs, list | tuple)
        return self._counted(tuple(inputs) if is_list else (inputs,))  # pyright: ignore[reportUnknownArgumentType]

    def _counted(self, arrays: tuple[Any, ...]) -> tuple[Any, ...]:
        """So many as there are inputs."""
        names = list(self.inputs)
        if len(arrays) != len(names):
            raise self._error(wrong_count(names, arrays))
        return arrays

    def _outs(self, out: Any) -> Any:
        """Arrays for results in order, where they are given by name."""
        if not isinstance(out, Mapping):
            return out
        names = list(self.outputs)
        self._check_names("output", out, names)
        return [out.get(n) for n in names]

    def _asked(self, outputs: Any, names: Sequence[str]) -> list[str]:
        if isinstance(outputs, str) or not isinstance(outputs, list | tuple):
            raise self._error(f"outputs is {outputs!r}. Give a list of names: {listed(names)}.")
        self._check_names("output", dict.fromkeys(map(_text, outputs)), names)
        return list(outputs)

    def _check_names(self, kind: str, given: Any, known: Collection[str]) -> None:
        if not isinstance(given, Mapping):
            hint = " In order: exe(x)." if kind == "input" else ""
            ort = " As onnxruntime has it: rlx.InferenceSession." if given is None else ""
            what = f"{kind}s are given by name, as a dict, not {_shown(given)}."
            raise self._error(f"{what}{hint}{ort}")
        for name in given:
            if name not in known:
                raise self._error(f"there is no {kind} {name!r}. It has: {listed(known)}.")

    def _error(self, text: str) -> Error:
        return Error(f"{self.name}: {text}")


class UnknownCall(Error, AttributeError):
    """A method that is not offered."""


def wrong_count(names: Sequence[str], arrays: Sequence[Any]) -> str:
    """What is wrong with more or fewer arrays than inputs."""
    if any(isinstance(a, Mapping) for a in arrays):
        return "a dict is given by position. Write exe(**feed), or exe.run(feed)."
    return f"takes {len(names)} inputs ({listed(names)}), got {len(arrays)}."


def _text(name: Any) -> str:
    return name if isinstance(name, str) else repr(name)


def _shown(value: Any) -> str:
    """Arrays by shape: their numbers say nothing of what is wrong."""
    is_array = isinstance(value, np.ndarray)
    return f"an array {value.dtype}{list(value.shape)}" if is_array else repr(value)[:200]


def listed(names: Collection[str], most: int = 8) -> str:
    """The names, or the first of many."""
    shown = ", ".join(list(names)[:most]) or "none"
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"


def not_ready(*_: Any) -> Any:
    raise Error("the weights have no values yet. Call set_params.")


def given_of(made: Sequence[Array | None]) -> Any:
    """Of what was made the one array, or all in order."""
    found = tuple(m for m in made if m is not None)
    return found[0] if len(found) == 1 else found


def sequence(out: Any) -> tuple[Any, ...]:
    """What is given for the outputs, one by one; nothing where it is no such thing."""
    if isinstance(out, np.ndarray):
        return (out,)
    return tuple(out) if isinstance(out, list | tuple) else ()
