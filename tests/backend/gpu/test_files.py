"""GPU programs in files: what opens is what was built, and runs without the compiler."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import rlx
from rlx import ops
from rlx.backends.gpu.runtime.routine import ChoiceStep
from rlx.backends.gpu.runtime.serialize import opened, packed
from rlx.core.dim import Dim
from rlx.core.dtype import DType
from rlx.core.sections import Sections
from rlx.core.sections import packed as joined
from rlx.core.shape import Shape
from rlx.ir.mir import Graph
from tests.backend.gpu.simulated_backend import SimulatedBackend, program_of

BACKEND = SimulatedBackend()


def scaled() -> Graph:
    """A product of a named dim, weights that are changed once, a constant, and a result whose size
    the data decides."""
    g = Graph("scaled")
    x, w = g.input("x", Shape([Dim("n", 1, 64), 8])), g.param("w", Shape([6, 8]))
    made = ops.matmul(x, ops.transpose(ops.mul(w, 2.0), perm=(1, 0)))
    table = g.constant(np.arange(6, dtype=np.float32))
    g.set_outputs([ops.softmax(ops.add(made, table), axis=1), ops.nonzero(ops.greater(made, 0.0))])
    return g


def branched() -> Graph:
    """A branch, and an op that the host computes."""
    then, other = Graph("then"), Graph("other")
    for body, function in ((then, ops.exp), (other, ops.neg)):
        body.set_outputs([function(body.input("a", Shape([3, 3])))])
    g = Graph("branched")
    x, on = g.input("x", Shape([3, 3])), g.input("on", Shape([], DType.BOOL))
    (made,) = ops.if_(on, x, then=then, else_=other)
    g.set_outputs([made, *ops.qr(x)])
    return g


@pytest.mark.parametrize("make", [scaled, branched])
def test_a_program_is_the_same_after_it_was_written(make: Any, tmp_path: Any) -> None:
    program = program_of(make(), BACKEND)
    steps = program.artefact.routines[program.artefact.main].steps
    assert any(isinstance(s, ChoiceStep) for s in steps) == (make is scaled)
    head, sections = packed(program.artefact)
    path = tmp_path / "p.rlx"
    path.write_bytes(b"".join(joined({"program": head}, sections)))
    file = Sections.open(path)
    again = BACKEND.load(opened(file.head["program"], file))
    rng = np.random.default_rng(0)
    params = {n.name: rng.standard_normal((6, 8), np.float32) for n in program.interface.params}
    inputs = [
        np.array(True) if n.shape.dtype is DType.BOOL else rng.standard_normal((3, 8), np.float32)
        for n in program.interface.inputs
    ]
    inputs = [x[:, :3] if make is branched and x.ndim else x for x in inputs]
    count = len(program.interface.outputs)
    got = [p.run(p.prepare(params, None), inputs, [None] * count) for p in (program, again)]
    assert all(np.array_equal(a, b) for a, b in zip(*got, strict=True))


def test_a_damaged_file_is_an_error(tmp_path: Any) -> None:
    head, sections = packed(program_of(scaled(), BACKEND).artefact)
    path = tmp_path / "p.rlx"
    path.write_bytes(b"".join(joined({"program": head}, {"bytes": sections["bytes"][:40]})))
    file = Sections.open(path)
    with pytest.raises(rlx.Error, match="Make it again"):
        opened(file.head["program"], file)
