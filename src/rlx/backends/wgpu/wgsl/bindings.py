"""Bindings of a WGSL module, and the functions by which its body reads and writes buffers.

A binding is an array of words, or of vectors of words where no access is narrower than they are.
All bindings are read_write: an adapter refuses a GPU buffer that is bound both ways in one
dispatch. Numbers narrower than a word that are stored one at a time are put into their word by
atomics, as its other bytes may be another thread's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from rlx.core.dtype import DType

WORD_BYTES = 4
BITWISE = ("and", "or")


@dataclass(frozen=True, slots=True, order=True)
class Access:
    """One way in which the body accesses a buffer, which is one function of the text."""

    buffer: int
    kind: Literal["load", "store", "add", "min", "max", "or", "and"]
    width: int = 1
    """Elements."""
    is_masked: bool = False
    is_always: bool = False
    """Is it done where the mask does not hold, too, at an index that is there, and then made 0?
    Compilers move such loads ahead of others, and no branches."""
    is_shared: bool = False
    """Is it of the block's shared memory? `buffer` is the number of the array then."""

    @property
    def function(self) -> str:
        """Its name."""
        width = self.width if self.width > 1 else ""
        space = "s" if self.is_shared else "b"
        return f"{self.kind}{width}{'_if' if self.is_masked else ''}_{space}{self.buffer}"

    def words(self, dtype: DType) -> int:
        """That it moves; a part of one counts as one."""
        return max(1, self.width * dtype.itemsize // WORD_BYTES)

    def is_partial(self, dtype: DType) -> bool:
        """Is it of less than a word?"""
        return self.width * dtype.itemsize < WORD_BYTES


def word_type(count: int) -> str:
    return "u32" if count == 1 else f"vec{count}<u32>"


def binding_text(
    accesses: Sequence[Access],
    dtypes: Sequence[DType],
    bindings: Sequence[int],
    params: Sequence[str],
) -> str:
    """The declarations of the bindings and of the uniform block, and a function per access."""
    count = max(bindings, default=-1) + 1
    grouped: list[list[Typed]] = [[] for _ in range(count)]
    for access in accesses:
        grouped[bindings[access.buffer]].append((access, dtypes[access.buffer]))
    made = [Words.of(f"m{k}", mine) for k, mine in enumerate(grouped)]
    place = "@group(0) @binding({}) var<storage, read_write> {}: array<{}>;"
    lines = [place.format(k, b.name, b.element) for k, b in enumerate(made)]
    lines.append(f"struct Params {{ {', '.join(params)} }}")
    lines.append(f"@group(0) @binding({len(made)}) var<uniform> p: Params;")
    for access in accesses:
        array = made[bindings[access.buffer]]
        lines += function_lines(access, dtypes[access.buffer], array)
    return "\n".join([*lines, ""])


def function_lines(access: Access, dtype: DType, array: Words) -> list[str]:
    """The function of an access: of an element of the array, and numbers or a mask."""
    return list(_Function(access, dtype, array).lines())


Typed = tuple[Access, DType]


@dataclass(frozen=True, slots=True)
class Words:
    """An array of vectors of `unit` words, or of atomic words."""

    name: str
    unit: int
    is_atomic: bool

    @classmethod
    def of(cls, name: str, accesses: Sequence[Typed]) -> Words:
        """The widest vectors that all accesses allow: a part of one may be loaded, but to store a
        part may write all of it."""
        loads = [a.words(d) for a, d in accesses if a.kind == "load"]
        stores = [a.words(d) for a, d in accesses if a.kind == "store"]
        is_atomic = any(a.kind not in ("load", "store") for a, _ in accesses) or any(
            a.kind == "store" and a.is_partial(d) for a, d in accesses
        )
        unit = 1 if is_atomic or not accesses else min([max([*loads, *stores]), *stores])
        return cls(name, unit, is_atomic)

    @property
    def element(self) -> str:
        return "atomic<u32>" if self.is_atomic else word_type(self.unit)

    def at(self, word: str) -> str:
        """The element that a word is in."""
        shift = self.unit.bit_length() - 1
        return f"{self.name}[{word} >> {shift}u]" if shift else f"{self.name}[{word}]"


@dataclass(frozen=True, slots=True)
class _Function:
    """The text of one access."""

    access: Access
    dtype: DType
    array: Words

    @property
    def _words(self) -> int:
        return self.access.words(self.dtype)

    @property
    def _bits(self) -> int:
        """Of an access within a word."""
        return self.access.width * self.dtype.itemsize * 8

    def lines(self) -> Iterator[str]:
        """It returns at its end alone: compilers that inline functions turn other returns into
        loops, in which one adapter was caught for minutes."""
        access, kind = self.access, word_type(self._words)
        is_load = access.kind == "load"
        given = ["at: i32", *(["v: " + kind] if not is_load else [])]
        given += ["mask: bool"] if access.is_masked else []
        yield f"fn {access.function}({', '.join(given)}){f' -> {kind}' if is_load else ''} {{"
        yield from [f" var r: {kind};"] if is_load else []
        has_branch = access.is_masked and not access.is_always
        yield from [" if (mask) {"] if has_branch else []
        yield from (f" {line}" for line in self._body())
        yield from [" }"] if has_branch else []
        made = f"select({kind}(), r, mask)" if access.is_always else "r"
        yield from [f" return {made};"] if is_load else []
        yield "}"

    def _word(self) -> str:
        """The first word, of an element."""
        size = self.dtype.itemsize
        if size < WORD_BYTES:
            return f"e >> {2 - size.bit_length() + 1}u"
        return f"e << {(size // WORD_BYTES).bit_length() - 1}u"

    def _body(self) -> Iterator[str]:
        is_word = self.dtype.itemsize == WORD_BYTES
        yield f"let {'w' if is_word else 'e'} = u32(at);"
        yield from [] if is_word else [f"let w = {self._word()};"]
        match self.access.kind:
            case "load":
                yield from self._load()
            case "store":
                yield from self._store()
            case _:
                yield from self._combine()

    # -- loads -----------------------------------------------------------------------------------

    def _load(self) -> Iterator[str]:
        if self.access.is_partial(self.dtype):
            mask = (1 << self._bits) - 1
            yield f"r = ({self._one('w')} >> {self._shift()}) & {mask:#x}u;"
        elif self.array.unit >= self._words:
            yield from self._part_of_unit()
        else:
            step = self.array.unit
            parts = [self._one(_plus("w", i)) for i in range(0, self._words, step)]
            yield f"r = {word_type(self._words)}({', '.join(parts)});"

    def _part_of_unit(self) -> Iterator[str]:
        """As many words as an element of the binding has, or some of them."""
        if self._words == 2 and self.array.unit == 4:
            yield f"let u = {self.array.at('w')};"
            yield "r = select(u.xy, u.zw, (w & 2u) != 0u);"
        else:
            yield f"r = {self._one('w')};"

    def _one(self, word: str) -> str:
        """An element of the binding, or the word of it, where one is asked for."""
        if self.array.is_atomic:
            return f"atomicLoad(&{self.array.at(word)})"
        part = self._words == 1 and self.array.unit > 1
        return self.array.at(word) + (f"[{word} & {self.array.unit - 1}u]" if part else "")

    def _shift(self) -> str:
        """The first bit, within its word, of an element narrower than that."""
        size = self.dtype.itemsize
        return f"((e & {WORD_BYTES // size - 1}u) * {size * 8}u)"

    # -- stores ----------------------------------------------------------------------------------

    def _store(self) -> Iterator[str]:
        if self.access.is_partial(self.dtype):
            mask = (1 << self._bits) - 1
            yield f"let s = {self._shift()};"
            yield f"atomicAnd(&{self.array.at('w')}, ~({mask:#x}u << s));"
            yield f"atomicOr(&{self.array.at('w')}, (v & {mask:#x}u) << s);"
            return
        unit = self.array.unit
        for i in range(0, self._words, unit):
            part = "" if unit == self._words else "." + "xyzw"[i : i + unit]
            place = self.array.at(_plus("w", i))
            is_atomic = self.array.is_atomic
            yield f"atomicStore(&{place}, v{part});" if is_atomic else f"{place} = v{part};"

    # -- atomics ---------------------------------------------------------------------------------

    def _combine(self) -> Iterator[str]:
        """One element combined with a value: 64 bits by halves, of which a sum carries; numbers
        that no instruction compares by exchanging the word until nobody was in between."""
        kind, size = self.access.kind, self.dtype.itemsize
        if size == 8:
            yield from self._combine_halves()
        elif size == WORD_BYTES and not (self.dtype is not DType.U32 and kind in ("min", "max")):
            yield f"atomic{kind.capitalize()}(&{self.array.at('w')}, v);"
        else:
            yield from self._exchange()

    def _combine_halves(self) -> Iterator[str]:
        low, high = self.array.at("w"), self.array.at("w + 1u")
        name = f"atomic{self.access.kind.capitalize()}"
        if self.access.kind == "add":
            yield f"let old = {name}(&{low}, v.x);"
            yield f"{name}(&{high}, v.y + select(0u, 1u, old + v.x < old));"
        else:
            yield f"{name}(&{low}, v.x);"
            yield f"{name}(&{high}, v.y);"

    def _exchange(self) -> Iterator[str]:
        place = self.array.at("w")
        shift, mask = "0u", 0xFFFFFFFF
        if self.access.is_partial(self.dtype):
            shift, mask = self._shift(), (1 << self._bits) - 1
        yield f"let s = {shift};"
        yield "loop {"
        yield f"let word = atomicLoad(&{place});"
        yield f"let old = (word >> s) & {mask:#x}u;"
        yield f"let made = ({self._combined()}) & {mask:#x}u;"
        yield f"let next = (word & ~({mask:#x}u << s)) | (made << s);"
        yield f"if (atomicCompareExchangeWeak(&{place}, word, next).exchanged) {{ break; }}"
        yield "}"

    def _combined(self) -> str:
        """The bits of `old` and `v` combined."""
        kind = self.access.kind
        if kind in ("add", *BITWISE):
            return f"old {dict(add='+', **{'and': '&', 'or': '|'})[kind]} v"
        than = "<" if kind == "min" else ">"
        a, b = self._comparable("old"), self._comparable("v")
        if self.dtype is DType.F32:
            is_nan, is_old_nan = (f"(({x} & 0x7fffffffu) > 0x7f800000u)" for x in ("v", "old"))
            return f"select(old, v, !{is_old_nan} & ({is_nan} | ({b} {than} {a})))"
        return f"select(old, v, {b} {than} {a})"

    def _comparable(self, bits: str) -> str:
        """Bits of a number as an integer in the order of the numbers: of floats, those of
        negative ones but the sign are reversed."""
        if self.dtype is DType.F32:
            number = f"bitcast<i32>({bits})"
            return f"({number} ^ (({number} >> 31u) & 0x7fffffff))"
        unused = 32 - self.dtype.itemsize * 8
        if not self.dtype.is_signed:
            return bits
        return f"(bitcast<i32>({bits} << {unused}u) >> {unused}u)"


def _plus(word: str, more: int) -> str:
    return f"({word} + {more}u)" if more else word
