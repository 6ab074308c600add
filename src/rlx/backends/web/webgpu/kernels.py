"""Kernels as JSON: parts of WGSL texts that a page puts together for the bindings it chooses."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from rlx.backends.gpu.device import Code
from rlx.backends.wgpu.wgsl.bindings import Access, Words, function_lines
from rlx.backends.wgpu.wgsl.module import Module
from rlx.core.dtype import DType
from rlx.ir.json_form import dim_json

Json = dict[str, Any]


@dataclass(slots=True)
class Kernels:
    """The codes of a program; texts that some of them share and ways of access are said once."""

    codes: list[Json] = field(default_factory=list[Json])
    texts: list[Json] = field(default_factory=list[Json])
    accesses: list[Json] = field(default_factory=list[Json])
    features: set[str] = field(default_factory=set[str])
    _numbers: dict[tuple[Access, DType], int] = field(
        default_factory=dict[tuple[Access, DType], int]
    )
    _known: dict[str, int] = field(default_factory=dict[str, int])

    @classmethod
    def of(cls, codes: Sequence[Code]) -> Kernels:
        made = cls()
        for code in codes:
            made._add(code, Module.of_bytes(code.binary))
        return made

    def _add(self, code: Code, module: Module) -> None:
        self.features |= set(module.features)
        self.codes.append(
            {
                "name": module.name,
                "grid": list(map(dim_json, code.grid)),
                "buffers": [b.dtype.value for b in module.buffers],
                "scalars": [[d.value, dim_json(dim)] for d, dim in code.scalars],
                "paramsBytes": module.params_bytes,
                "text": self._share(module),
            }
        )

    def _share(self, module: Module) -> int:
        """The number of its text, which an earlier one may have, too."""
        text = {
            "params": ", ".join(module.members),
            "head": module.head,
            "body": module.body,
            "accesses": [self._use(a, module.buffers[a.buffer].dtype) for a in module.accesses],
        }
        number = self._known.setdefault(json.dumps(text), len(self.texts))
        if number == len(self.texts):
            self.texts.append(text)
        return number

    def _use(self, access: Access, dtype: DType) -> list[int]:
        """The buffer, and the number of the way of access, whichever buffer it is of."""
        key = replace(access, buffer=0), dtype
        if key not in self._numbers:
            self._numbers[key] = len(self.accesses)
            self.accesses.append(_access_json(*key))
        return [access.buffer, self._numbers[key]]


UNITS = (1, 2, 4)
"""Words of an element of a binding."""


def _access_json(access: Access, dtype: DType) -> Json:
    """What it asks of the binding that it is through, and its text by the binding's elements: the
    names of the buffer and of the binding are left open."""
    texts = {str(unit): _text(access, dtype, unit) for unit in UNITS}
    return {
        "words": access.words(dtype),
        "stores": access.kind == "store",
        "atomic": Words.of("", [(access, dtype)]).is_atomic,
        "texts": {**texts, "atomic": _text(access, dtype, 1, is_atomic=True)},
    }


def _text(access: Access, dtype: DType, unit: int, *, is_atomic: bool = False) -> str:
    if not is_atomic and Words.of("", [(access, dtype)]).is_atomic:
        return ""
    lines = function_lines(access, dtype, Words("m{binding}", unit, is_atomic))
    name = access.function
    return "\n".join([lines[0].replace(name, f"{name[:-1]}{{buffer}}", 1), *lines[1:]])
