"""A tour of rlx: the whole compiler, in the order a model goes through it.

Run it (`make tour`); the tests run it too, so that what it says stays true.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np

import rlx
from rlx import ops
from rlx.ir.interpret import evaluate


def title(text: str) -> None:
    print(f"\n=== {text}\n")


# --------------------------------------------------------------------------------------------------
title("1. Ops: declared once, called on arrays or on nodes")

# An op is one row of a table (src/rlx/ops/). Its body is its meaning in NumPy, so on arrays a call
# computes. Python scalars are weak: 2.0 takes the array's dtype.
print(ops.silu(np.array([-1.0, 0.0, 1.0], np.float32)) * 2.0)

# On nodes the same call builds a graph. Nodes are interned: the same expression is the same node.
g = rlx.Graph("hello")
x = g.input("x", rlx.Shape([1, 4]))
w = g.param("w", rlx.Shape([4, 2]))
y = ops.relu(ops.matmul(x, w))
assert y is ops.relu(ops.matmul(x, w))
g.set_outputs([y])
print(g)

# Shapes are checked as the graph is built. The message says what, where, and why.
try:
    ops.matmul(w, w)
except rlx.GraphError as error:
    print(f"refused: {error}")

# --------------------------------------------------------------------------------------------------
title("2. HIR: blocks, and how they lower to MIR")

# The same feed-forward block under two policies: Direct writes fused ops at once, Fusable leaves
# primitives, for the passes to find.


def ffn(policy: rlx.FusionPolicy) -> rlx.HirModule:
    m = rlx.HirModule("ffn", policy)
    x = m.input("x", rlx.Shape([16, 64]))
    with m.scope("layer0.ffn"):
        up, gate = (m.param(n, rlx.Shape([64, 128])) for n in ("up", "gate"))
        m.set_outputs([m.swiglu_ffn(x, up, gate, m.param("down", rlx.Shape([128, 64])))])
    return m


for policy in rlx.FusionPolicy:
    mir = ffn(policy).lower()
    print(policy.name, [n.op for n in mir.graph.nodes if not n.is_leaf])

# --------------------------------------------------------------------------------------------------
title("3. Rules and fusion: every candidate is a decision")

# The passes are one tuple in pipeline.py. Whatever one of them decides is logged with its reason
# and price: the gate turns launches, syncs and bytes into nanoseconds with the target's numbers.
result = rlx.CompilePipeline(rlx.FusionTarget.CPU).compile_hir(ffn(rlx.FusionPolicy.FUSABLE))
print(result.fusion.summary_line())
for decision in result.decisions:
    print(f"- {'took' if decision.verdict else 'left'} {decision.what}: {decision.reason}")

# A verdict can be reversed by its id, and the program still means the same.
chosen = next(d for d in result.decisions if d.verdict and "swiglu" in d.what)
options = rlx.FusionOptions(force={chosen.id: False})
other = rlx.CompilePipeline(options=options).compile_hir(ffn(rlx.FusionPolicy.FUSABLE))
print(
    f"without {chosen.what}: {len(other.lir.plan.schedule)} kernels "
    f"instead of {len(result.lir.plan.schedule)}"
)

# The gate by itself: a Welch spectrum whose peaks are searched on the device or on the host. The
# answer depends on the machine, and the numbers say why.
before = rlx.GraphIoProfile(3, 0, 33_554_432, 184_549_376)
after = rlx.GraphIoProfile(4, 1, 1_048_576, 219_152_384)
for target in rlx.FusionTarget:
    gate = rlx.IoFusionGate.for_target(target)
    score = gate.score_ns(rlx.fusion_benefit(before, after))
    print(f"{target.value:6s} {score:+16,.2f} ns -> {gate.should_fuse(before, after)}")

# --------------------------------------------------------------------------------------------------
title("4. The plan: one arena, checked by code that shares nothing with the planner")

plan = result.lir.plan
print(plan.report())
print(f"{plan.total_unshared_bytes:,} bytes unshared, {plan.bytes_saved:,} saved by sharing")
print(f"the prologue, run once: {[n.op for n in plan.schedule if plan.phase_of(n) == 0]}")

# --------------------------------------------------------------------------------------------------
title("5. Running: native code, or NumPy in the plan's poisoned arena")

# Where llvmlite is installed the default target is "cpu": one native function for the whole plan.
# "reference" runs the same plan, or that of another target, with the ops' own meanings.
module = ffn(rlx.FusionPolicy.FUSABLE)
rng = np.random.default_rng(0)
exe = rlx.compile(module, "cpu")
params = {k: (rng.normal(size=s.dims) * 0.1).astype(np.float32) for k, s in exe.params.items()}
data = rng.normal(size=(16, 64)).astype(np.float32)
expected = evaluate(module.lower().graph, {**params, "x": data})[0]
for target, like in (("cpu", None), ("reference", "cpu"), ("reference", "cuda")):
    made = rlx.compile(module, target, like=like, params=params)(data)
    print(f"{target:9s} {like or '':4s} differs by at most {np.abs(made - expected).max():.1e}")
    assert np.allclose(made, expected, rtol=1e-4, atol=1e-5)

# Compiled programs are cached on disk by their request; a program can be a file, too.
exe.set_params(params)
with tempfile.TemporaryDirectory() as folder:
    exe.save(Path(folder, "ffn.rlx"))
    assert (rlx.load(Path(folder, "ffn.rlx"))(data) == exe(data)).all()
print("saved, loaded, and the bits are the same")

# --------------------------------------------------------------------------------------------------
title("6. Named dims: one compile, any length")

seq = rlx.Dim("seq", 1, 4096)


@rlx.jit
def attend(q, k, v):
    return ops.attention(q, k, v, num_heads=4, mask_kind="causal")


shape = rlx.Shape([1, seq, 32])
graph = rlx.trace(
    lambda q, k, v: ops.attention(q, k, v, num_heads=4, mask_kind="causal"), shape, shape, shape
)
causal = rlx.compile(graph)
for length in (1, 5, 33):
    q = rng.normal(size=(1, length, 32)).astype(np.float32)
    assert np.allclose(causal(q, q, q), attend(q, q, q), rtol=1e-4, atol=1e-5)
    print(f"seq={length}: arena {causal.memory(seq=length).arena_bytes:,} bytes")

print("\nThat was the compiler. src/rlx/pipeline.py has it on one screen.")
