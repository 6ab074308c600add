"""Language models with sessions on a device, against native code for the host in f32:
`python -m tests.backend.cuda.sessions [--target cuda] [--shape tiny] [formats…]`.

Of each block format and format of the cache: the logits of prompts and steps, of several slots at
once, behind a slot that was cut back, copied or forked, with rows that were shifted, and of a
session that a file was read into. The same calls have the same bits.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from bench.gpu.lm_files import SHAPES, write
from rlx.lm import load
from rlx.lm.decoder import SessionDecoder
from rlx.lm.slots import Part
from rlx.ops.op import Array

FORMATS = ("q4_k_m", "q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q2_k", "q3_k", "q5_k", "iq4_xs",
           "f16", "bf16", "f32")  # fmt: skip
CACHED = ("f32", "f16", "q8_0")
TOLERANCE = {"f32": 2e-5, "f16": 2e-3, "q8_0": 1e-2}
"""Of the greatest difference, to the greatest logit: a few layers of sums in f32; keys and values
that differ in their last bit round to neighbours in the format of the cache now and then."""
SLOTS, CONTEXT = 4, 512


class Checks:
    """One file on two targets."""

    def __init__(self, path: Path, cached: str, target: str, other: str) -> None:
        self.tolerance, self.worst = TOLERANCE[cached], 0.0
        how: dict[str, Any] = {"precision": "exact", "kv": cached, "slots": SLOTS}
        how |= {"context": CONTEXT, "cache": False}
        self.models = [load(path, target=t, **how) for t in (target, other)]
        self.words = len(self.models[0].tokenizer.texts)
        self.rng = np.random.default_rng(1)
        self.wrong: list[str] = []

    def run(self) -> list[str]:
        for check in (self.prompts, self.slots, self.again, self.copies, self.forks, self.files,
                      self.shifts, self.texts):  # fmt: skip
            try:
                check()
            except Exception as error:
                self.wrong.append(f"{check.__name__}: {type(error).__name__}: {error}")
        return self.wrong

    @property
    def decoders(self) -> list[SessionDecoder]:
        found = [m.decoder for m in self.models]
        assert all(isinstance(d, SessionDecoder) for d in found)
        return [d for d in found if isinstance(d, SessionDecoder)]

    def ids(self, count: int) -> list[int]:
        return self.rng.integers(0, self.words, count).tolist()

    def step(self, what: str, *parts: Part) -> list[Array]:
        """The device's logits, compared."""
        made, wanted = (d.step(list(parts)) for d in self.decoders)
        for x, y in zip(made, wanted, strict=True):
            self.compare(what, x, y)
        return made

    def compare(self, what: str, x: Array, y: Array) -> None:
        if x.shape != y.shape or not np.isfinite(x).all():
            self.wrong.append(f"{what}: {x.shape} or not finite, wanted {y.shape}")
            return
        off = float(np.abs(x - y).max(initial=0) / max(1e-30, np.abs(y).max(initial=0)))
        self.worst = max(self.worst, off)
        if off > self.tolerance:
            self.wrong.append(f"{what}: off by {off:.1e} of the greatest logit")

    def truncate(self, slot: int, length: int) -> None:
        for d in self.decoders:
            d.truncate(slot, length)

    # -- checks ------------------------------------------------------------------------------------

    def prompts(self) -> None:
        """Lengths around those that choose kernels, all logits, then steps of one token."""
        for count in (1, 2, 16, 17, 70, 130):
            self.truncate(0, 0)
            self.step(f"prompt of {count}", Part(0, self.ids(count), range(count)))
            for number in range(3):
                self.step(f"step {number} behind {count}", Part(0, self.ids(1), [0]))

    def slots(self) -> None:
        """Prompts of unlike lengths, then steps of all, and of some in another order."""
        self.step("prompts", *(Part(s, self.ids(9 + 20 * s), [0]) for s in range(1, SLOTS)))
        for number in range(3):
            every = [Part(s, self.ids(1), [0]) for s in range(SLOTS)]
            self.step(f"step {number} of all slots", *every)
        self.step("two slots", Part(3, self.ids(2), range(2)), Part(1, self.ids(1), [0]))

    def again(self) -> None:
        """A slot that is cut back computes the same bits again."""
        ids, device = self.ids(40), self.decoders[0]
        self.truncate(0, 0)
        first = self.step("a prompt", Part(0, ids, range(40)))[0]
        device.truncate(0, 25)
        device.step([Part(0, self.ids(7), [0])])
        device.truncate(0, 0)
        again = device.step([Part(0, ids, range(40))])[0]
        self.same("a prompt again", first, again)
        tail = self.ids(1)
        device.truncate(0, 30)
        one = device.step([Part(0, tail, [0])])[0]
        device.truncate(0, 30)
        self.same("a step again", one, device.step([Part(0, tail, [0])])[0])

    def copies(self) -> None:
        for d in self.decoders:
            d.copy(0, 2, 20)
            d.truncate(0, 20)
        tail = self.ids(1)
        made = [self.step(f"slot {s} of a copy", Part(s, tail, [0]))[0] for s in (0, 2)]
        self.same("a copied slot", *made)

    def forks(self) -> None:
        device, host = self.decoders
        tails = [self.ids(1) for _ in range(2)]
        inputs = [device.inputs([t], [0], [0]) for t in tails]
        forks = [d.session.fork() for d in (device, host)]
        made = [f(*inputs[0]) for f in forks]
        self.compare("a fork", *made)
        own = self.step("behind a fork", Part(0, tails[1], [0]))[0]
        self.same("a fork", forks[0](*inputs[1])[0], own)

    def files(self) -> None:
        device = self.decoders[0]
        given = device.inputs([self.ids(1)], [0], [0])
        with tempfile.TemporaryDirectory() as folder:
            device.session.save(Path(folder, "session"))
            fresh = device.fresh(SLOTS)
            fresh.session.load(Path(folder, "session"))
        for name in device.session.states:
            self.same(f"state {name}", device.session.state(name), fresh.session.state(name))
        self.same("a saved session", device.session.fork()(*given), fresh.session(*given))

    def shifts(self) -> None:
        session = self.decoders[0].session
        before = {n: np.array(session.state(n)) for n in session.states}
        session.shift_rows(1, 7, 30)
        for name, held in before.items():
            held[1, :30] = held[1, 7:37].copy()
            self.same(f"shifted {name}", session.state(name), held)

    def texts(self) -> None:
        """Answers to several prompts at once, of which the likeliest tokens follow."""
        prompts = [self.ids(n) for n in (5, 33, 12)]
        for slot in range(SLOTS):
            self.truncate(slot, 0)
        how: dict[str, Any] = {"max_tokens": 8, "temperature": 0.0, "ignore_end": True}
        made, wanted = ([a.tokens for a in m.complete_all(prompts, **how)] for m in self.models)
        if made != wanted:
            self.wrong.append(f"answers: {made}, expected {wanted}")

    def same(self, what: str, x: Array, y: Array) -> None:
        if np.asarray(x).tobytes() != np.asarray(y).tobytes():
            self.wrong.append(f"{what}: other bits")


def cases(formats: list[str]) -> Iterator[tuple[str, str]]:
    """Every format with a cache of floats, the first ones with others as well."""
    for number, form in enumerate(formats):
        yield from ((form, c) for c in (CACHED if number < 2 else CACHED[:1]))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("formats", nargs="*", help="block formats; all, if none is given")
    parser.add_argument("--target", default="cuda")
    parser.add_argument("--other", default="cpu", help="what it is compared with")
    parser.add_argument("--shape", default="tiny", choices=SHAPES)
    args = parser.parse_args()
    bad = 0
    with tempfile.TemporaryDirectory() as folder:
        for form, cached in cases(args.formats or list(FORMATS)):
            start = time.monotonic()
            path = write(Path(folder, f"{form}.gguf"), SHAPES[args.shape], form)
            checks = Checks(path, cached, args.target, args.other)
            wrong = checks.run()
            bad += bool(wrong)
            for line in wrong:
                print(f"{form}, cache in {cached}: {line}", flush=True)
            took = time.monotonic() - start
            print(f"{args.shape} {form}, cache in {cached}: {len(wrong)} wrong, off by "
                  f"{checks.worst:.1e} at most, {took:.1f} s", flush=True)  # fmt: skip
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
