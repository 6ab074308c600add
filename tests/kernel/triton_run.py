"""Running Triton source on arrays, in Triton's interpreter: NumPy alone, no GPU, no torch.

Triton decides when it is imported whether it interprets, so a process of its own does.
"""

from __future__ import annotations

import importlib.util
import math
import multiprocessing
import os
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from rlx.core.dim import evaluate
from rlx.core.dtype import DType
from tests.backend.cpu.guarded import guarded
from tests.kernel.triton_probe import Source

Array = np.ndarray[Any, Any]
POINTERS = {
    **{DType(f"{k}{b}"): f"{k}{b}" for k in "iu" for b in (8, 16, 32, 64)},
    **{DType(f"{k}{b}"): f"{k}p{b}" for k in "f" for b in (16, 32, 64)},
    DType.BF16: "bf16",
    DType.BOOL: "i8",
}


def interpreter() -> ProcessPoolExecutor:
    """A process that interprets."""
    return _process(_interpret)


def compiler() -> ProcessPoolExecutor:
    """A process that compiles."""
    return _process(_compile)


def _process(mode: Any) -> ProcessPoolExecutor:
    context = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(max_workers=1, mp_context=context, initializer=mode)


def _interpret() -> None:
    os.environ["TRITON_INTERPRET"] = "1"


def _compile() -> None:
    os.environ.pop("TRITON_INTERPRET", None)


def run(
    source: Source, operands: Sequence[Array], results: Sequence[Array], sizes: Mapping[str, int]
) -> list[Array]:
    """The buffers of the results after a launch. All buffers end at a fence: touching what is
    behind one ends the process."""
    made = [guarded(r) for r in results]
    count = math.prod(-(-evaluate(extent, sizes) // step) for extent, step in source.grid)
    missed = np.zeros(1, np.int32)
    buffers = (*map(guarded, operands), *made, missed)
    given = [_Tensor(a, d) for a, d in zip(buffers, source.pointers, strict=True)]
    numbers = [evaluate(d, sizes) for d in source.sizes]
    if count:
        with tempfile.TemporaryDirectory() as folder, np.errstate(all="ignore"):
            _imported(source, folder)[(count,)](*given, *numbers)
    if missed[0]:
        raise IndexError(f"{missed[0]} gathered rows are not there")
    return [m.copy() for m in made]


def ptx(source: Source) -> str:
    """The source compiled for a GPU that need not be there."""
    import triton  # pyright: ignore[reportMissingImports]
    from triton.backends.compiler import GPUTarget  # pyright: ignore[reportMissingImports]
    from triton.compiler import ASTSource  # pyright: ignore[reportMissingImports]

    with tempfile.TemporaryDirectory() as folder:
        function = _imported(source, folder)
        kinds = [f"*{POINTERS[d]}" for d in source.pointers] + ["i64"] * len(source.sizes)
        signature = dict(zip(function.arg_names, kinds, strict=True))
        made = triton.compile(ASTSource(function, signature), target=GPUTarget("cuda", 90, 32))
        return made.asm["ptx"]


def _imported(source: Source, folder: str) -> Any:
    """Triton reads a function's source from its file."""
    path = Path(folder) / f"{source.name}.py"
    path.write_text(source.text)
    spec = importlib.util.spec_from_file_location(source.name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, source.name)


class _Tensor:
    """An array as the interpreter asks for it: memory of the host, which is there already."""

    def __init__(self, array: Array, dtype: DType) -> None:
        self.array, self.dtype = array, POINTERS[dtype]

    def data_ptr(self) -> int:
        return self.array.ctypes.data

    def untyped_storage(self) -> _Tensor:
        return self

    def cpu(self) -> _Tensor:
        return self

    def copy_(self, _other: _Tensor) -> None:
        """The interpreter wrote to the array itself."""

    def new_empty(self, _count: int, device: str) -> _Tensor:
        return _Tensor.__new__(_Tensor)

    def set_(self, storage: _Tensor, *_view: object) -> None:
        self.array, self.dtype = storage.array, storage.dtype

    def storage_offset(self) -> int:
        return 0

    def size(self) -> tuple[int, ...]:
        return self.array.shape

    def stride(self) -> tuple[int, ...]:
        return self.array.strides
