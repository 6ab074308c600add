"""Torch's own op database through the importer: `python -m tests.torch.opinfo --dtype float32`.

Every entry of `op_db` is exported on some of its sample inputs, imported, compiled and run; results
are compared with eager; factors whose signs or order are a convention, by what they must satisfy.
Each entry is one of: right; refused, with the reason; wrong; not exported by torch; or exempt, by
name and reason (random numbers, uninitialised memory), of which dtypes and shapes are compared.
Exits with 1 if one is wrong.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import signal
import sys
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch._prims_common import clone_preserve_strides
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils import _pytree as pytree

import rlx
from rlx.frontends.torch.model import from_exported
from tests.torch.factors import PROPERTIES

SECONDS = 120
"""What one sample may take."""
ROUNDINGS = {
    torch.float32: 1e-4, torch.float64: 1e-7, torch.complex64: 1e-4, torch.float16: 6e-3,
    torch.bfloat16: 5e-2, torch.complex128: 1e-7,
}  # fmt: skip
"""Relative to an element and to the greatest of its tensor: sums in other orders, and half floats
that eager rounds between the parts of an op, or does not."""
RANDOM = "draws random numbers, which are others than torch's"
MEMORY = "gives uninitialised memory"
EXEMPT = {
    **dict.fromkeys((
        "bernoulli", "cauchy", "exponential", "geometric", "log_normal", "multinomial", "normal",
        "rand_like", "randint", "randint_like", "randn", "randn_like", "uniform",
        "nn.functional.alpha_dropout", "nn.functional.dropout", "nn.functional.dropout2d",
        "nn.functional.dropout3d", "nn.functional.feature_alpha_dropout",
        "nn.functional.fractional_max_pool2d", "nn.functional.fractional_max_pool3d",
        "nn.functional.rrelu", "nn.functional.multi_head_attention_forward", "rand", "randperm",
        "torch.ops.aten._safe_softmax.default.dropout", "svd_lowrank", "pca_lowrank",
    ), RANDOM),
    **dict.fromkeys((
        "empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided",
    ), MEMORY),
}  # fmt: skip


TIES = frozenset({"topk", "kthvalue", "sort", "argsort", "mode", "median", "nanmedian"})
"""Entries that give places of elements: which of equals is not stated."""


VERDICTS = ("no sample", "right", "exempt", "not exported", "refused", "crashed", "wrong")
"""From good to bad."""


@dataclass
class Found:
    """What came of an entry."""

    name: str
    verdict: str
    why: str = ""


class Late(Exception):
    """A sample took too long."""


@dataclass(frozen=True)
class Drawn:
    """Which inputs are drawn: how many an entry (0: all), of which kind and seed. The first ones
    of seed 0, any of others."""

    count: int
    seed: int = 0
    kind: str = "samples"

    def of(self, entry: Any, dtype: torch.dtype) -> Iterator[Any]:
        torch.manual_seed(self.seed)
        known = self._known(entry, dtype)
        if self.seed:
            found = list(known)
            random.Random(self.seed).shuffle(found)
            known = iter(found)
        chosen = itertools.islice(known, self.count or None)
        return (sample.noncontiguous() for sample in chosen) if self.kind == "strided" else chosen

    def _known(self, entry: Any, dtype: torch.dtype) -> Iterator[Any]:
        """References have extremal values, mixed dtypes, empty and 0-d tensors as well."""
        source = entry.reference_inputs if self.kind == "references" else entry.sample_inputs
        return source("cpu", dtype, requires_grad=False)


class Wrapped(torch.nn.Module):
    """An op as a module of its tensors."""

    def __init__(self, op: Any, flat: list[Any], spec: Any) -> None:
        super().__init__()
        self.op, self.flat, self.spec = op, flat, spec
        self.places = [i for i, v in enumerate(flat) if isinstance(v, torch.Tensor)]

    @property
    def drops(self) -> bool:
        """Does it drop elements at random?"""
        _, _, kwargs = pytree.tree_unflatten(self.flat, self.spec)
        return bool(kwargs.get("dropout_p", 0)) and kwargs.get("training", True)

    @property
    def tensors(self) -> list[torch.Tensor]:
        return [self.flat[i] for i in self.places]

    def forward(self, *tensors: torch.Tensor) -> Any:
        flat = list(self.flat)
        for place, tensor in zip(self.places, tensors, strict=True):
            flat[place] = tensor
        first, args, kwargs = pytree.tree_unflatten(flat, self.spec)
        made = self.op(first, *args, **kwargs)
        return tuple(made) if isinstance(made, list) else made


def wrapped(entry: Any, sample: Any) -> Wrapped:
    flat, spec = pytree.tree_flatten((sample.input, sample.args, sample.kwargs))
    return Wrapped(entry.op, [v.detach() if isinstance(v, torch.Tensor) else v for v in flat], spec)


def copied(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """Tensors of their own, with the same strides."""
    return [clone_preserve_strides(t) if t.layout is torch.strided else t.clone() for t in tensors]


def difference(got: Any, want: Any) -> str:
    """How results differ; "" where they do not."""
    ours, theirs = pytree.tree_leaves(got), pytree.tree_leaves(want)
    if len(ours) != len(theirs):
        return f"{len(ours)} results, not {len(theirs)}"
    found = (_difference(a, b) for a, b in zip(ours, theirs))
    return next((f for f in found if f), "")


def _difference(got: Any, want: Any) -> str:
    if not isinstance(want, torch.Tensor):
        is_same = got == want or (got != got and want != want)
        return "" if is_same else f"{got!r}, not {want!r}"
    if (why := _kind_difference(got, want)) or not want.numel():
        return why
    if want.dtype not in ROUNDINGS:
        return "" if torch.equal(got, want) else f"{int((got != want).sum())} elements differ"
    return _distance(got.resolve_conj(), want.resolve_conj(), ROUNDINGS[want.dtype])


def _kind_difference(got: Any, want: Any) -> str:
    """How dtypes or shapes differ."""
    if not isinstance(want, torch.Tensor):
        return ""
    if isinstance(got, torch.Tensor) and got.dtype == want.dtype and got.shape == want.shape:
        return ""
    return f"{getattr(got, 'dtype', type(got))} {list(getattr(got, 'shape', ()))}, not " \
           f"{want.dtype} {list(want.shape)}"  # fmt: skip


def kind_difference(got: Any, want: Any) -> str:
    """How dtypes or shapes of results differ; "" where they do not."""
    pairs = zip(pytree.tree_leaves(got), pytree.tree_leaves(want), strict=True)
    return next((f for f in (_kind_difference(a, b) for a, b in pairs) if f), "")


def _distance(got: torch.Tensor, want: torch.Tensor, step: float) -> str:
    wide = torch.complex128 if want.is_complex() else torch.float64
    a, b = got.to(wide).numpy(), want.to(wide).numpy()
    finite = np.isfinite(b)
    same = (a == b) | (np.isnan(a) & np.isnan(b)) | (finite & np.isfinite(a))
    if not same.all():
        return f"{int((~same).sum())} elements are not finite where the others are"
    scale = np.abs(b[finite]).max(initial=0.0)
    with np.errstate(all="ignore"):
        far = np.abs(a - b) > step * (np.abs(b) + 0.1 * scale) + 1e-7
    far &= finite
    if not far.any():
        return ""
    return f"{int(far.sum())} of {far.size} differ, by up to {np.abs((a - b)[far]).max():.2g}"


def run(entry: Any, dtype: torch.dtype, targets: list[str], drawn: Drawn) -> dict[str, Found]:
    """What came of an entry, for each target: the worst of its samples."""
    found = {t: Found(name_of(entry), "no sample") for t in targets}
    for sample in drawn.of(entry, dtype):
        verdicts = in_time(wrapped(entry, sample), targets, name_of(entry))
        for target, new in verdicts.items():
            if VERDICTS.index(new.verdict) > VERDICTS.index(found[target].verdict):
                found[target] = new
    return found


def in_time(module: Wrapped, targets: list[str], name: str) -> dict[str, Found]:
    signal.alarm(SECONDS)
    try:
        return run_sample(module, targets, name)
    except Late:
        return {t: Found(name, "refused", f"it takes more than {SECONDS} s") for t in targets}
    finally:
        signal.alarm(0)


def run_sample(module: Wrapped, targets: list[str], name: str) -> dict[str, Found]:
    every = lambda verdict, why: {t: Found(name, verdict, why) for t in targets}
    try:
        want = module(*copied(module.tensors))
        program = torch.export.export(module, tuple(copied(module.tensors)))
    except Late:
        raise
    except Exception as error:
        return every("not exported", first_line(error))
    return {t: run_target(program, module, want, t, name) for t in targets}


def run_target(program: Any, module: Wrapped, want: Any, target: str, name: str) -> Found:
    try:
        exe = rlx.compile(from_exported(program), target, cache=False)
        got = exe(*copied(module.tensors))
    except rlx.Error as error:
        return Found(name, "refused", str(error))
    except Late:
        raise
    except Exception as error:
        return Found(name, "crashed", f"{type(error).__name__}: {first_line(error)}")
    return judged(name, module, got, want)


def judged(name: str, module: Wrapped, got: Any, want: Any) -> Found:
    """A result compared with eager's as far as eager's is the only right one."""
    bare, why = name.partition("/")[0], difference(got, want)
    if not why:
        return Found(name, "right")
    if different := kind_difference(got, want):
        return Found(name, "wrong", different)
    if bare in PROPERTIES:
        pairs = PROPERTIES[bare](module.tensors[0], got, want)
        why = next((d for d in (difference(a, b) for a, b in pairs) if d), "")
        if not why:
            return Found(name, "right")
    if module.drops:
        return Found(name, "exempt", RANDOM)
    if bare in TIES and is_tie(module.tensors[0], got, want):
        return Found(name, "exempt", "gives the place of another of equals")
    return Found(name, "exempt", EXEMPT[bare]) if bare in EXEMPT else Found(name, "wrong", why)


def is_tie(x: torch.Tensor, got: Any, want: Any) -> bool:
    """Are values equal, and places those of equal elements?"""
    if isinstance(got, tuple):
        return not difference(got[0], want[0])
    axes = range(x.dim())
    return any(torch.equal(x.gather(a, got), x.gather(a, want)) for a in axes)


def first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0][:300]


def name_of(entry: Any) -> str:
    return f"{entry.name}/{entry.variant_test_name}" if entry.variant_test_name else entry.name


def _late(*_: Any) -> None:
    raise Late


def chosen(names: list[str], dtype: torch.dtype, shard: str) -> list[Any]:
    index, total = map(int, shard.split("/"))
    found = [e for e in op_db if not names or name_of(e) in names or e.name in names]
    return [e for e in found if dtype in e.dtypes][index::total]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", help="entries, all if none is given")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--target", action="append", help="reference and cpu if none is given")
    parser.add_argument("--samples", type=int, default=2, help="of each entry; 0 for all")
    parser.add_argument("--kind", default="samples", choices=("samples", "strided", "references"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--shard", default="0/1", help="i/n: every n-th entry, from the i-th")
    parser.add_argument("--json", type=Path, help="a file for all verdicts")
    parser.add_argument("--verbose", action="store_true")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    signal.signal(signal.SIGALRM, _late)
    dtype, targets = getattr(torch, given.dtype), given.target or ["reference", "cpu"]
    made: dict[str, list[Found]] = {t: [] for t in targets}
    drawn = Drawn(given.samples, given.seed, given.kind)
    for entry in chosen(given.names, dtype, given.shard):
        for target, verdict in run(entry, dtype, targets, drawn).items():
            made[target].append(verdict)
            if given.verbose and verdict.verdict != "right":
                print(f"{target} {verdict.name}: {verdict.verdict}: {verdict.why}", flush=True)
    return report(made, given.dtype, given.json)


def report(made: dict[str, list[Found]], dtype: str, file: Path | None) -> int:
    for target, found in made.items():
        counts = Counter(f.verdict for f in found)
        total = ", ".join(f"{n} {v}" for v, n in sorted(counts.items(), key=lambda i: -i[1]))
        print(f"{dtype} on {target}: {len(found)} entries: {total}")
        for f in found:
            if f.verdict in ("wrong", "crashed"):
                print(f"  {f.verdict} {f.name}: {f.why}")
    if file is not None:
        file.write_text(json.dumps({t: [asdict(f) for f in v] for t, v in made.items()}, indent=1))
    bad = [f for found in made.values() for f in found if f.verdict in ("wrong", "crashed")]
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
