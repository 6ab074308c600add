"""Op signatures: one string states the dims and dtypes of operands and results.

    "t[~b m k], t[~b k n] -> t[~b m n]"

A dtype letter stands for one dtype of its class, the same wherever it occurs: `f` float, `i`
integer, `n` real number, `c` complex, `x` float or complex, `t` any number, `a` anything; `_` is
any dtype, not held to be the same elsewhere. A dtype's
own name (`i64`) is that dtype, `$to` the dtype in attribute `to`, and `f.complex` / `x.real` the
dtype derived from a letter's.

Of the dims, a name is one dim, the same wherever it occurs (or an attribute's value), `*b` any run
of dims, `~b` a run that broadcasts, `...` any dims at all. Result dims may be arithmetic:
`n//2+1`. A trailing `?` marks an operand that may be left out, `+` one that may be repeated.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from rlx.core import dtype as dt
from rlx.core.dim import Dim, DimLike, dim_max, dim_min
from rlx.core.dtype import DType
from rlx.core.errors import GraphError
from rlx.core.shape import DimsDiffer, Shape, broadcast, dims_differ

CLASSES: dict[str, frozenset[DType]] = {
    "f": dt.FLOATS,
    "i": dt.INTEGERS,
    "n": dt.FLOATS | dt.INTEGERS,
    "c": dt.COMPLEX,
    "x": dt.FLOATS | dt.COMPLEX,
    "t": dt.FLOATS | dt.INTEGERS | dt.COMPLEX,
    "a": frozenset(DType),
}
CLASS_NAMES = {
    "f": "a float dtype",
    "i": "an integer dtype",
    "n": "a real number dtype",
    "c": "a complex dtype",
    "x": "a float or complex dtype",
    "t": "a number dtype",
    "a": "any dtype",
}
_OPERAND = re.compile(r"\s*([$\w.]+)\[([^\]]*)\]([?+]?)\s*")
_FUNCTIONS = {"max": dim_max, "min": dim_min}


@dataclass(frozen=True, slots=True)
class Operand:
    """One operand or result of a signature."""

    dtype: str
    dims: tuple[str, ...]
    suffix: str = ""

    @property
    def letter(self) -> str | None:
        """The dtype variable, if the dtype is one."""
        return self.dtype if self.dtype in CLASSES else None

    @property
    def is_optional(self) -> bool:
        return self.suffix == "?"

    @property
    def is_variadic(self) -> bool:
        return self.suffix == "+"

    @property
    def pack(self) -> int | None:
        """Where the run of dims stands, if there is one."""
        return next((i for i, d in enumerate(self.dims) if d[0] in "*~."), None)


@dataclass(slots=True)
class Env:
    """What unification has bound: dims, runs of dims, dtypes, and which operand bound each."""

    dims: dict[str, DimLike] = field(default_factory=dict[str, DimLike])
    packs: dict[str, tuple[DimLike, ...]] = field(default_factory=dict[str, tuple[DimLike, ...]])
    dtypes: dict[str, DType] = field(default_factory=dict[str, DType])
    source: dict[str, int] = field(default_factory=dict[str, int])


Attrs: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Signature:
    """A parsed signature."""

    text: str
    operands: tuple[Operand, ...]
    results: tuple[Operand, ...]
    code: Mapping[str, Any]

    @property
    def is_variadic(self) -> bool:
        return any(o.is_variadic for o in self.operands)

    @property
    def min_arity(self) -> int:
        return sum(not o.is_optional for o in self.operands)

    def operand(self, index: int) -> Operand:
        """The operand at `index`; past a repeated one, that one again."""
        return self.operands[min(index, len(self.operands) - 1)]

    def check_arity(self, count: int) -> None:
        most = len(self.operands)
        if count < self.min_arity or (count > most and not self.is_variadic):
            wanted = str(most) if most == self.min_arity else f"{self.min_arity} to {most}"
            wanted = f"at least {self.min_arity}" if self.is_variadic else wanted
            raise GraphError(f"takes {wanted} operands, got {count}")

    def unify(self, shapes: Sequence[Shape], attrs: Attrs) -> Env:
        """Bind every name against `shapes`, or say which operand disagrees and how."""
        self.check_arity(len(shapes))
        env = Env()
        for i, shape in enumerate(shapes):
            operand = self.operand(i)
            _unify_dtype(operand, i, shape, env, attrs)
            _unify_dims(operand, i, shape, env, attrs)
        return env

    def infer(self, shapes: Sequence[Shape], attrs: Attrs) -> tuple[Shape, ...]:
        """The shapes of the results."""
        env = self.unify(shapes, attrs)
        return tuple(self._result(r, env, attrs) for r in self.results)

    def _result(self, result: Operand, env: Env, attrs: Attrs) -> Shape:
        dims: list[DimLike] = []
        for token in result.dims:
            if token[0] in "*~":
                dims += env.packs[token[1:]]
                continue
            dim = self.evaluate(token, env, attrs)
            if not isinstance(dim, Dim) and dim < 0:
                raise GraphError(f"the result dim {token} is {dim}, which is negative")
            dims.append(dim)
        return Shape(dims, result_dtype(result, env, attrs))

    def evaluate(self, token: str, env: Env, attrs: Attrs) -> Any:
        """A dim expression of this op's own declaration, over bound dims and attributes."""
        if token in env.dims:
            return env.dims[token]
        if token.isdigit():
            return int(token)
        return eval(self.code[token], {"__builtins__": {}, **_FUNCTIONS}, {**env.dims, **attrs})


def result_dtype(result: Operand, env: Env, attrs: Attrs) -> DType:
    """The dtype of a result: a letter's, one derived from it, an attribute's, or a fixed one."""
    token = result.dtype
    if token in env.dtypes:
        return env.dtypes[token]
    if token.startswith("$"):
        return attrs[token[1:]]
    letter, _, part = token.partition(".")
    return getattr(env.dtypes[letter], part) if part else DType.of(token)


def parse(text: str) -> Signature:
    """Split a signature into its operands and results, with result arithmetic compiled."""
    left, _, right = text.partition("->")
    operands, results = _operands(left.strip()), _operands(right.strip())
    arithmetic = {d for r in results for d in r.dims if not d.isidentifier() and d[0] not in "*~."}
    names = {d for r in results for d in r.dims if d.isidentifier()}
    code = {d: compile(d, "<signature>", "eval") for d in sorted(arithmetic | names)}
    return Signature(text, operands, results, code)


def _operands(text: str) -> tuple[Operand, ...]:
    found = [Operand(m[1], tuple(m[2].split()), m[3]) for m in _OPERAND.finditer(text)]
    if ",".join(m[0] for m in _OPERAND.finditer(text)) != text:
        raise ValueError(f"not a signature: {text!r}")
    return tuple(found)


def _unify_dtype(operand: Operand, i: int, shape: Shape, env: Env, attrs: Attrs) -> None:
    letter = operand.letter
    if operand.dtype == "_":
        return
    if letter is None:
        expected = result_dtype(operand, env, attrs)
        if shape.dtype is not expected:
            raise GraphError(f"operand {i} is {shape}, expected dtype {expected}")
        return
    if shape.dtype not in CLASSES[letter]:
        raise GraphError(f"operand {i} is {shape}, expected {CLASS_NAMES[letter]}")
    bound = env.dtypes.setdefault(letter, shape.dtype)
    env.source.setdefault("dtype:" + letter, i)
    if bound is not shape.dtype:
        other = env.source["dtype:" + letter]
        raise GraphError(
            f"operand {i} is {shape}, but operand {other} is {bound}: dtypes must be equal. "
            "Cast one of them"
        )


def _unify_dims(operand: Operand, i: int, shape: Shape, env: Env, attrs: Attrs) -> None:
    tokens, dims, pack = operand.dims, shape.dims, operand.pack
    fixed = len(tokens) - (pack is not None)
    if len(dims) < fixed or (pack is None and len(dims) != fixed):
        least = "" if pack is None else "at least "
        raise GraphError(f"operand {i} is {shape}, expected {least}{fixed} dims")
    if pack is None:
        for token, dim in zip(tokens, dims):
            _bind(token, dim, i, shape, env, attrs)
        return
    stop = len(dims) - (len(tokens) - pack - 1)
    _bind_pack(tokens[pack], dims[pack:stop], i, shape, env)
    for token, dim in [*zip(tokens[:pack], dims), *zip(tokens[pack + 1 :], dims[stop:])]:
        _bind(token, dim, i, shape, env, attrs)


def _bind(token: str, dim: DimLike, i: int, shape: Shape, env: Env, attrs: Attrs) -> None:
    if token.isdigit() or token in attrs:
        expected: DimLike = int(token) if token.isdigit() else attrs[token]
        if dim != expected:
            what = f"operand {i} is {shape}, expected {token}={expected}, got {dim}"
            raise DimsDiffer(what, dim, expected)
        return
    bound = env.dims.setdefault(token, dim)
    origin = env.source.setdefault(token, i)
    if bound != dim:
        what = f"operand {i} is {shape}: its dim {token} is {dim}, but {bound} in operand {origin}"
        raise DimsDiffer(what, dim, bound)


def _bind_pack(token: str, dims: tuple[DimLike, ...], i: int, shape: Shape, env: Env) -> None:
    if token == "...":
        return
    name = token[1:]
    bound = env.packs.setdefault(name, dims)
    origin = env.source.setdefault(name, i)
    if bound == dims:
        return
    if token[0] == "~":
        env.packs[name] = broadcast(bound, dims)
        return
    shown = [f"[{', '.join(map(str, d))}]" for d in (dims, bound)]
    what = f"operand {i} is {shape}: its dims {shown[0]} differ from {shown[1]} in operand {origin}"
    raise dims_differ(what, dims, bound)
