"""What is drawn: one node with its operands, from a page's declaration and a seed."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

import numpy as np
from onnx import defs

from rlx.core.dtype import DType
from rlx.frontends.onnx.reader import NEWEST_OPSET, UNCHANGED
from rlx.ops.draw import Draw as BaseDraw
from rlx.ops.draw import Spec

Array = np.ndarray[Any, Any]
MICROSOFT, ML = "com.microsoft", "ai.onnx.ml"
NEWEST_ML = 5
"""Of the opsets of ai.onnx.ml."""
PEER_OPSET = 26
"""The newest of onnxruntime 1.31: later ones are compared with onnx.reference alone."""
MICROSOFT_OPSET = 20
"""Of the default domain beside operators of onnxruntime, which lags behind the newest."""
LOW, HIGH = -(2**63), 2**63 - 1
"""The ends of int64."""
EPSILON = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 2.0**-23, "float64": 2.0**-52}


@dataclass(frozen=True, slots=True)
class Rounding:
    """How far floats may be apart: so many units in the last place of the value, or of `scale`
    where terms of that size may have cancelled. Integers may be `whole` apart where they are
    truncated floats."""

    ulps: float = 8.0
    scale: float = 0.0
    whole: int = 0


def sums(terms: int, scale: float = 1.0) -> Rounding:
    """Of a sum of `terms` numbers of about `scale` in any order: an error of one unit for each
    addition, of partial sums that grow with the number of terms."""
    return Rounding(8.0 + terms, scale * max(1, terms))


@dataclass(frozen=True, slots=True)
class Operand:
    """An operand's value. A known one is an initialiser."""

    array: Array
    is_known: bool = False
    has_names: bool = True
    """May its sizes be named?"""
    is_computed: bool = False
    """Is it computed in the model, from a size of the first input?"""

    @property
    def dims(self) -> tuple[int, ...]:
        return self.array.shape

    @property
    def rank(self) -> int:
        return self.array.ndim


@dataclass(frozen=True, slots=True)
class Node:
    """A model of one node, and its inputs."""

    op: str
    domain: str
    opset: int
    operands: tuple[Operand | None, ...]
    attrs: Mapping[str, Any]
    outputs: int = 1
    tolerance: Rounding = Rounding()
    naming: str = "static"
    """How sizes of inputs are given: static, names (each its own), shared (one name for equal
    sizes), or open (no shape at all)."""

    def array(self, number: int) -> Array:
        """The value of an operand; an empty vector where it is left out."""
        found = self.operands[number] if number < len(self.operands) else None
        return np.zeros(0) if found is None else found.array

    def has(self, number: int) -> bool:
        return number < len(self.operands) and self.operands[number] is not None


class Draw(BaseDraw):
    """A source of operands for one version of an operator."""

    def __init__(self, seed: Sequence[int], op: str, domain: str, opset: int) -> None:
        super().__init__(seed)
        self.op, self.domain, self.opset = op, domain, opset
        self._chosen: dict[str, DType] = {}

    @property
    def schema(self) -> Any:
        return defs.get_schema(self.op, self.opset, self.domain)

    @property
    def num_operands(self) -> int:
        return self.schema.max_input

    def has(self, attribute: str) -> bool:
        """Has this version of the operator the attribute?"""
        return self.domain == MICROSOFT or attribute in self.schema.attributes

    def some(self, chance: float = 0.7, **attrs: Any) -> dict[str, Any]:
        """Those attributes that the version has, each given or left out."""
        return {k: v for k, v in attrs.items() if self.has(k) and self.coin(chance)}

    # -- dtypes ---------------------------------------------------------------------------------

    def kind(self, name: str, only: str | None = None) -> DType:
        """A dtype that the type parameter admits, the same for all its uses; f32 more often.
        `only` are the kinds to choose from: f, i, u, b."""
        if name not in self._chosen:
            admitted = [k for k in self.admitted(name) if only is None or k.numpy.kind in only]
            is_plain = DType.F32 in admitted and self.coin(0.5)
            self._chosen[name] = DType.F32 if is_plain else self.choice(admitted)
        return self._chosen[name]

    def kind_of(self, number: int, only: str | None = None) -> DType:
        """A dtype that an operand admits, by its place."""
        if self.domain == MICROSOFT:
            return DType.F32
        operands = self.schema.inputs
        return self.kind(operands[min(number, len(operands) - 1)].type_str, only)

    def admitted(self, name: str) -> list[DType]:
        """The dtypes of a type parameter, or of an operand by its name, that rlx has."""
        if self.domain == MICROSOFT:
            return [DType.F32]
        texts = next(
            (c.allowed_type_strs for c in self.schema.type_constraints if c.type_param_str == name),
            (name,),
        )
        known = {f"tensor({t})": k for t, k in _kinds().items()}
        return [known[t] for t in texts if t in known]

    # -- operands -------------------------------------------------------------------------------

    def tensor(self, dims: Sequence[int], kind: str | DType, domain: str = "any") -> Operand:
        """Values of a type parameter or a dtype; mostly an input."""
        dtype = kind if isinstance(kind, DType) else self.kind(kind)
        return self.given(self.values(Spec(tuple(dims), dtype, domain)))

    def given(self, array: Any, *, known: float = 0.1) -> Operand:
        return Operand(np.asarray(array), self.coin(known))

    def shaping(self, values: Any, dtype: Any = np.int64) -> Operand:
        """An operand that decides shapes: an initialiser, an input of static shape, or a formula of
        a size of the first input."""
        how = self.rng.random()
        return Operand(np.asarray(values, dtype), how < 0.55, False, is_computed=how > 0.8)

    def indices(self, dims: Sequence[int], size: int, kind: str = "Tind") -> Operand:
        """Whole numbers of an axis, negative ones among them; no elements where it has none."""
        dtype = self.kind(kind, "i")
        dims = tuple(dims) if size else (0, *tuple(dims)[1:])
        low = -size if self.coin() else 0
        return self.given(self.rng.integers(low, max(size, 1), dims).astype(dtype.numpy), known=0.3)

    # -- shapes and axes ------------------------------------------------------------------------

    def axis(self, rank: int) -> int:
        return self.integer(-rank, rank - 1) if rank else 0

    def signed(self, axis: int, rank: int) -> int:
        """An axis counted from the front, or the same from the back."""
        return axis - rank if self.coin(0.3) else axis

    def subset(self, rank: int) -> list[int]:
        """Some axes in any order, none twice, negative ones among them."""
        chosen = [int(a) for a in self.rng.permutation(rank)[: self.integer(0, rank)]]
        return [self.signed(a, rank) for a in chosen]

    def broadcastable(self, count: int, rank: int = 4) -> list[tuple[int, ...]]:
        """Shapes that broadcast with one another."""
        whole = self.dims(0, rank)
        return [self._broadcastable(whole) for _ in range(count)]

    def bound(self, size: int) -> int:
        """A position about an axis: inside, at and past either end, or an end of an integer."""
        if self.coin(0.2):
            ends = (LOW, LOW + 1, -(2**31), -size - 1, size + 1, 2**31 - 1, HIGH - 1, HIGH)
            return self.choice(ends)
        return self.integer(-size - 1, size + 1)

    # -- the result -----------------------------------------------------------------------------

    def node(
        self,
        *operands: Operand | None,
        outputs: int = 1,
        tolerance: Rounding | None = None,
        **attrs: Any,
    ) -> Node:
        kept = list(operands)
        while kept and kept[-1] is None:
            kept.pop()
        made = Node(self.op, self.domain, self.opset, tuple(kept), attrs, outputs)
        made = made if tolerance is None else replace(made, tolerance=tolerance)
        naming = self.choice(("static", "static", "static", "names", "shared", "open"))
        return replace(made, naming=naming)


@cache
def _kinds() -> dict[str, DType]:
    """ONNX's names of element types → rlx's."""
    names = {
        "float": "f32", "double": "f64", "float16": "f16", "bfloat16": "bf16", "bool": "bool",
        "int8": "i8", "int16": "i16", "int32": "i32", "int64": "i64",
        "uint8": "u8", "uint16": "u16", "uint32": "u32", "uint64": "u64",
    }  # fmt: skip
    return {onnx: DType(ours) for onnx, ours in names.items()}


# -- pages ----------------------------------------------------------------------------------------

Drawing = Callable[[Draw], Node]
Key = tuple[str, str]
"""Domain and operator."""


Formula = Callable[[Node], Array | tuple[Array, ...]]
"""The value of the only output, or those of all."""
Right = str | Formula


@dataclass(frozen=True, slots=True)
class Explained:
    """A difference that is known and meant."""

    op: str
    right: Right
    """Whose answer rlx gives: onnxruntime, reference, or that of a function."""
    why: str
    when: Callable[[Node], bool]
    otherwise: Formula | None = None
    """What is right where the evaluator named gives nothing."""


@dataclass(frozen=True, slots=True)
class Pages:
    """All that the pages declare."""

    drawings: dict[Key, Drawing] = field(default_factory=dict[Key, Drawing])
    family: dict[Key, str] = field(default_factory=dict[Key, str])
    explained: list[Explained] = field(default_factory=list[Explained])


_declared = Pages()


def draws(*ops: str, domain: str = "") -> Callable[[Drawing], Drawing]:
    """Declare how models of these operators are drawn."""

    def register(drawing: Drawing) -> Drawing:
        for op in ops:
            if (domain, op) in _declared.drawings:
                raise AssertionError(f"{op} is on two pages")
            _declared.drawings[domain, op] = drawing
            _declared.family[domain, op] = drawing.__module__.rpartition(".")[2]
        return drawing

    return register


def explain(
    *ops: str,
    right: Right,
    why: str,
    when: Callable[[Node], bool] = lambda node: True,
    otherwise: Formula | None = None,
) -> None:
    """One row of the table of explained differences, for each of these operators."""
    _declared.explained.extend(Explained(op, right, why, when, otherwise) for op in ops)


@cache
def pages() -> Pages:
    folder = import_module("tests.onnx.differential.pages")
    for page in iter_modules(folder.__path__):
        import_module(f"{folder.__name__}.{page.name}")
    return _declared


# -- one draw -------------------------------------------------------------------------------------


@cache
def opsets(domain: str, op: str) -> list[int]:
    """Opsets for each version of an operator among those that rlx reads: the first that has it, and
    the last; of the newest version also the last that onnxruntime has."""
    if domain == MICROSOFT:
        return [MICROSOFT_OPSET]
    found = {s.since_version for s in defs.get_all_schemas_with_history() if _is(s, domain, op)}
    starts = sorted(found)
    oldest, newest = (1, NEWEST_ML) if domain == ML else (UNCHANGED, NEWEST_OPSET)
    firsts = [max(v, oldest) for v in starts]
    lasts = [v - 1 for v in starts[1:]] + [newest]
    spans = [(a, b) for a, b in zip(firsts, lasts) if a <= b]
    of_peer = [PEER_OPSET] if spans and spans[-1][0] < PEER_OPSET < newest else []
    chosen = dict.fromkeys([a for a, _ in spans] + of_peer + [b for _, b in spans])
    return [v for v in chosen if not defs.get_schema(op, v, domain).deprecated]


def _is(schema: Any, domain: str, op: str) -> bool:
    return (schema.domain, schema.name) == (domain, op)


BATCH = 16
"""Draws that share an opset, and one compile for the cpu."""


def drawn(key: Key, number: int, seed: int) -> Node:
    """The draw of this number; the same for the same seed."""
    domain, op = key
    versions = opsets(domain, op)
    opset = versions[number // BATCH % len(versions)]
    source = Draw([seed, zlib.crc32(f"{domain}.{op}".encode()), number], op, domain, opset)
    return pages().drawings[key](source)
