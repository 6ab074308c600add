"""Targets: the documented claims, limits and prices, and claims that give their reasons."""

from dataclasses import replace

import pytest

from rlx.backends.mlx import calls as mlx_calls
from rlx.backends.tpu import calls as tpu_calls
from rlx.core.dim import Dim
from rlx.core.dtype import DType
from rlx.core.errors import Error
from rlx.core.layout import Layout
from rlx.core.representative import representative, typical_size
from rlx.core.shape import Shape
from rlx.cost.machine import CacheLevel
from rlx.cost.target import FusionLimits, FusionTarget, Target
from rlx.ir.mir import Graph, Node
from rlx.ops.op import table
from tests.unit.fusing import FEW_KERNELS, LIMITED

ALL = [Target.of(t) for t in FusionTarget]
FUSED = [
    "dot_general", "fused_swiglu", "fused_matmul_bias_act", "fused_residual_ln",
    "fused_residual_rms_norm", "ada_layer_norm",
]  # fmt: skip
CLAIMS = {
    "cpu": {*FUSED},
    "metal": {*FUSED},
    "wgpu": {*FUSED},
    "cuda": {*FUSED},
    "rocm": {*FUSED},
    "mlx": {*FUSED} & {*mlx_calls.table()},
    "tpu": {*FUSED} & {*tpu_calls.table()},
}


@pytest.mark.parametrize("target", ALL, ids=repr)
def test_the_documented_claims_of_fused_ops(target: Target) -> None:
    assert {op for op in FUSED if target.has_kernel(op)} == CLAIMS[target.name]
    assert target.has_kernel("matmul")
    for op in ("region", "elementwise_region"):
        assert target.has_kernel(op) == bool(target.regions)  # engines fuse by themselves


@pytest.mark.parametrize("target", ALL, ids=repr)
def test_a_target_names_only_ops_of_the_table(target: Target) -> None:
    named = {*target.native, *target.kernel_limits, *target.refusals, *target.views}
    assert named | target.syncs | target.loops <= table().keys()
    for op in target.native:
        assert table()[op].lower is not None, f"{op} has no lowering: it is native anyway"
    for op in target.kernel_limits:
        has_lowering = op in target.native or table()[op].lower is not None
        assert has_lowering, f"{op}: what exceeds a kernel's limit must have a lowering"


@pytest.mark.parametrize("target", ALL, ids=repr)
def test_limits(target: Target) -> None:
    limits = {"cpu": FusionLimits(None, 64, 8, 1024), "mlx": FusionLimits(), "tpu": FusionLimits()}
    assert target.limits == limits.get(target.name, FusionLimits(32, 16))


@pytest.mark.parametrize("value", [0, -1, 1.5, True])
def test_a_limit_is_a_positive_int(value: object) -> None:
    with pytest.raises(Error, match="max_elementwise_steps"):
        FusionLimits(max_elementwise_steps=value)  # pyright: ignore[reportArgumentType]


def test_targets_are_found_by_name_enum_and_themselves() -> None:
    for t in FusionTarget:
        assert Target.of(t) is Target.of(t.value) is Target.of(Target.of(t))
        assert Target.of(t).name == t.value
    with pytest.raises(Error, match=r"gpu.*cpu, cuda, rocm, metal, mlx, wgpu, tpu"):
        Target.of("gpu")


# -- claims ---------------------------------------------------------------------------------------


def _cast(dtype: DType) -> Node:
    g = Graph("g")
    return g.cast(g.input("x", Shape([4])), to=dtype)


@pytest.mark.parametrize("target", ALL, ids=repr)
def test_index_graphs_of_f32_and_i64_run_everywhere(target: Target) -> None:
    for dtype in (DType.F32, DType.I64, DType.I32, DType.BOOL, DType.F16, DType.BF16, DType.U8):
        assert target.claim(_cast(dtype)).is_native


@pytest.mark.parametrize(("name", "missing"), [
    ("cpu", set()), ("cuda", set()), ("rocm", set()),
    ("metal", {DType.F64, DType.C128}), ("wgpu", {DType.F64, DType.C128}),
    ("mlx", set()), ("tpu", set()),
])  # fmt: skip
def test_a_dtype_that_does_not_exist_is_refused_with_the_reason(
    name: str, missing: set[DType]
) -> None:
    target = Target.of(name)
    for dtype in DType:
        claim = target.claim(_cast(dtype))
        assert claim.kind == ("no" if dtype in missing else "native")
        assert ("the option f64='f32'" in claim.reason) == (dtype in missing)


def test_a_dtype_inside_a_body_is_seen() -> None:
    body = Graph("body")
    x = body.input("x", Shape([4]))
    body.set_outputs([body.cast(body.exp(body.cast(x, to="f64")), to="f32")])
    g = Graph("g")
    node = g.node("elementwise_region", (g.input("x", Shape([4])),), {"body": body})
    assert Target.of("metal").claim(node).kind == "no"
    assert Target.of("cuda").claim(node).is_native


def _welch(n_fft: int, k: int, dtype: DType = DType.F32) -> Node:
    g = Graph("g")
    return g.welch_peaks(g.input("s", Shape([4, 2 * n_fft], dtype)), k=k, n_segments=2)


def test_welch_peaks_is_native_within_the_kernels_bounds() -> None:
    target = LIMITED
    assert target.claim(_welch(1022, 64)).is_native  # 512 bins
    assert target.claim(_welch(1024, 64)).kind == "lowered"  # 513 bins
    assert "k up to 64, not 65" in target.claim(_welch(256, 65)).reason
    unbounded = _welch(Dim("n", 2), 4)  # pyright: ignore[reportArgumentType]
    assert target.claim(unbounded).kind == "lowered"
    assert target.claim(_welch(2 * Dim("n", 2, 511), 4)).is_native  # pyright: ignore[reportArgumentType]


def test_welch_peaks_elsewhere() -> None:
    assert Target.of("cpu").claim(_welch(4096, 100)).kind == "lowered"  # to three kernels
    for name in ("cuda", "rocm", "metal", "wgpu", "tpu", "mlx"):
        assert Target.of(name).claim(_welch(256, 16)).kind == "lowered"


@pytest.mark.parametrize("target", ALL, ids=repr)
def test_every_op_that_can_run_says_why_where_it_is_not_native(target: Target) -> None:
    for op in table():
        if not target.has_kernel(op):
            known = op in ("if", "while", "scan") or table()[op].lower
            assert known or target.refusals.get(op), op


def test_a_claim_of_no_kernel_names_target_and_op() -> None:
    g = Graph("g")
    node = g.fused_swiglu(g.input("x", Shape([2, 8])))
    claim = FEW_KERNELS.claim(node)
    assert (claim.kind, claim.reason) == (
        "lowered", "metal has no dedicated kernel for fused_swiglu",
    )  # fmt: skip


def test_a_refusal_is_data() -> None:
    refusing = replace(Target.of("cpu"), refusals={"cast": "it is broken here"})
    claim = refusing.claim(_cast(DType.F16))
    assert (claim.kind, claim.reason) == ("no", "it is broken here")
    assert not refusing.has_kernel("cast")


def _loop(max_iterations: int | None) -> Node:
    cond, body = Graph("cond"), Graph("body")
    cond.set_outputs([cond.less(cond.input("i", Shape([])), 3.0)])
    body.set_outputs([body.add(body.input("i", Shape([])), 1.0)])
    g = Graph("g")
    attrs = {"cond": cond, "body": body, "max_iterations": max_iterations}
    return g.node("while", (g.input("i", Shape([])),), attrs)


def test_a_target_that_unrolls_refuses_an_unbounded_loop_with_the_reason() -> None:
    for name in ("cpu", "cuda", "rocm", "metal", "wgpu"):
        assert Target.of(name).claim(_loop(None)).kind == "native"
    assert LIMITED.claim(_loop(None)).kind == "no"
    assert "max_iterations" in LIMITED.claim(_loop(None)).reason
    assert LIMITED.claim(_loop(8)).kind == "lowered"


def test_a_scan_is_unrolled_only_where_its_length_is_fixed() -> None:
    def scan(length: object) -> Node:
        body, g = Graph("body"), Graph("g")
        c, x = body.input("c", Shape([])), body.input("x", Shape([]))
        body.set_outputs([body.add(c, x)])
        xs = g.input("xs", Shape([length]))  # pyright: ignore[reportArgumentType]
        attrs = {"body": body, "length": length, "num_carries": 1}
        return g.node("scan", (g.input("c", Shape([])), xs), attrs)

    running = dict.fromkeys(map(Target.of, ("cpu", "cuda", "metal", "wgpu")), ["native"] * 2)
    for target, kinds in {**running, LIMITED: ["lowered", "no"]}.items():
        assert [target.claim(scan(n)).kind for n in (4, Dim("n"))] == kinds


# -- views ----------------------------------------------------------------------------------------


def test_views_of_a_target() -> None:
    g = Graph("g")
    x = g.input("x", Shape([4, 6]))
    plain = Layout.contiguous((4, 6))
    cpu, tpu = Target.of("cpu"), Target.of("tpu")
    turned = g.transpose(x, perm=(1, 0))
    assert cpu.view(turned, plain) == Layout((6, 4), (1, 6))
    assert tpu.view(turned, plain) is None
    for target in ALL:
        assert target.view(g.reshape(x, dims=(24,)), plain) == Layout((24,), (1,))
        assert target.view(g.narrow(x, axis=0, start=1, length=2), plain) == Layout(
            (2, 6), (6, 1), 6
        )
        assert target.view(g.node("cast", (x,), {"to": DType.F32}), plain) == plain
        assert target.view(g.cast(x, to="f16"), plain) is None
        assert target.view(g.neg(x), plain) is None
    assert tpu.view(g.narrow(x, axis=1, start=1, length=2), plain) is None
    flipped = g.flip(x, axes=(0,))
    assert tpu.view(flipped, plain) is None
    assert cpu.view(flipped, plain) is not None


# -- numbers --------------------------------------------------------------------------------------


def test_bandwidth_is_that_of_the_smallest_cache_that_holds_the_working_set() -> None:
    caches = (CacheLevel(100, 9.0), CacheLevel(1000, 5.0))
    machine = replace(Target.of("cpu").machine, caches=caches)
    assert [machine.memory_gb_s(n) for n in (0, 100, 101, 1000, 1001)] == [9, 9, 5, 5, 50]


@pytest.mark.parametrize("target", ALL, ids=repr)
def test_nearer_memories_are_smaller_and_faster(target: Target) -> None:
    sizes = [level.bytes for level in target.machine.caches]
    speeds = [level.gb_s for level in target.machine.caches] + [target.gate.memory_gb_s]
    assert sizes == sorted(sizes)
    assert speeds == sorted(speeds, reverse=True)


def test_the_digest_is_of_the_whole_content() -> None:
    assert len({t.digest() for t in ALL}) == 7
    base = Target.of("cpu")
    assert (
        replace(base, views=frozenset(sorted(base.views, reverse=True))).digest() == base.digest()
    )
    changed = [
        replace(base, machine=replace(base.machine, gate=replace(base.gate, dispatch_ns=51))),
        replace(base, limits=FusionLimits(8)),
        replace(base, native=base.native - {"attention"}),
        replace(base, refusals={"fft": "no"}),
        replace(base, missing_dtypes={DType.F64: "no"}),
        replace(base, views=frozenset[str]()),
        replace(base, syncs=frozenset({"custom"})),
        replace(base, regions=frozenset({"row"})),
        replace(base, loops=frozenset[str]()),
        replace(base, machine=replace(base.machine, peak_gflops={DType.F32: 1.0})),
        replace(base, machine=replace(base.machine, caches=())),
        replace(base, machine=replace(base.machine, vector_registers=16)),
        replace(base, convolutions=None),
    ]
    digests = {t.digest() for t in changed}
    assert len(digests) == len(changed)
    assert base.digest() not in digests
    assert base == replace(base)
    assert hash(base) == hash(replace(base))


def test_representative_sizes_are_inside_the_range_and_typical() -> None:
    dims = [Dim("z", 300), Dim("a", 1, 16), Dim("b", 1, 4096), Dim("c"), Dim("d", 200, 300)]
    assert list(representative(dims).items()) == [
        ("a", 16), ("b", 128), ("c", 128), ("d", 200), ("z", 300),
    ]  # fmt: skip
    assert typical_size(Dim("b", 1, 4096) * 3 + 1) == 385
    assert typical_size(7) == 7
