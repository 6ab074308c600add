"""What onnxruntime gives for its own operators: models of one node, their inputs and results.

    python tests/onnx/golden_microsoft.py tests/onnx/microsoft.npz

makes the file that test_microsoft.py reads; it needs onnxruntime, which the tests do not. Cases
whose results onnxruntime leaves undefined (rows past the end of a cache) are not among them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from onnx import ValueInfoProto, helper, numpy_helper

RNG = np.random.default_rng(0)
Cases = dict[str, np.ndarray]


def floats(*dims: int, scale: float = 1.0) -> Any:
    return (RNG.standard_normal(dims) * scale).astype(np.float32)


def number(value: float) -> Any:
    return np.array(value, np.float32)


def small(*dims: int) -> Any:
    """Scales."""
    return np.abs(floats(*dims)) * 0.01 + np.float32(0.005)


def whole(dtype: Any, *dims: int) -> Any:
    info = np.iinfo(dtype)
    return RNG.integers(info.min, info.max + 1, dims).astype(dtype)


def ints(values: Any, dtype: Any = np.int32) -> Any:
    return np.array(values, dtype)


class Golden:
    """Collects cases."""

    def __init__(self) -> None:
        self.cases: Cases = {}

    def add(
        self,
        name: str,
        op: str,
        arrays: Sequence[Any],
        outputs: int | Sequence[str] = 1,
        known: Sequence[int] = (),
        **attrs: Any,
    ) -> None:
        """`known` operands are initialisers."""
        names = [f"x{i}" if a is not None else "" for i, a in enumerate(arrays)]
        given = {n: a for n, a in zip(names, arrays) if a is not None}
        weights = {f"x{i}" for i in known}
        results = [f"y{i}" for i in range(outputs)] if isinstance(outputs, int) else outputs
        node = helper.make_node(op, names, results, domain="com.microsoft", **attrs)
        graph = helper.make_graph(
            [node],
            name,
            [_info(n, a) for n, a in given.items() if n not in weights],
            [ValueInfoProto(name=r) for r in results if r],
            [numpy_helper.from_array(a, n) for n, a in given.items() if n in weights],
        )
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString()
        feeds = {n: a for n, a in given.items() if n not in weights}
        self.cases[f"{name}/model"] = np.frombuffer(model, np.uint8)
        self.cases |= {f"{name}/in{i}": a for i, a in enumerate(feeds.values())}
        self.cases |= {f"{name}/out{i}": a for i, a in enumerate(_run(model, feeds))}


def _info(name: str, array: Any) -> Any:
    kind = helper.np_dtype_to_tensor_dtype(array.dtype)
    return helper.make_tensor_value_info(name, kind, array.shape)


def _run(model: bytes, feeds: dict[str, Any]) -> list[Any]:
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return ort.InferenceSession(model, options).run(None, feeds)


def plain(g: Golden) -> None:
    x, row = floats(2, 3, 8), floats(8)
    g.add("gelu", "Gelu", [x])
    g.add("quick gelu", "QuickGelu", [x], alpha=0.5)
    g.add("bias gelu", "BiasGelu", [x, row])
    g.add("fast gelu", "FastGelu", [x, row])
    how: dict[str, Any] = {"transB": 1, "alpha": 0.5, "beta": 2.0}
    how |= {"activation": "LeakyRelu", "activation_alpha": 0.2}
    g.add("fused gemm", "FusedGemm", [floats(4, 5), floats(6, 5), floats(6)], **how)
    g.add("skip norm", "SkipLayerNormalization", [x, floats(3, 8), row])
    fourth = ["y0", "", "", "y3"]
    arrays = [x, floats(2, 3, 8), row, floats(8), floats(8)]
    g.add("skip norm, sum", "SkipLayerNormalization", arrays, fourth, epsilon=1e-5)
    g.add("skip rms norm", "SkipSimplifiedLayerNormalization", [x, arrays[1], row], fourth)
    ids, segments = (RNG.integers(0, n, (2, 4)).astype(np.int32) for n in (9, 2))
    tables = [floats(9, 8), floats(7, 8), floats(2, 8), row, floats(8)]
    mask = ints([[1, 1, 1, 0], [1, 1, 0, 0]])
    g.add("embed", "EmbedLayerNormalization", [ids, segments, *tables, mask], 3)
    places = ints([[1, 2, 3, 4], [0, 0, 2, 6]])
    arrays = [ids, None, *tables[:2], None, *tables[3:], None, places]
    g.add("embed, positions", "EmbedLayerNormalization", arrays, 2)


def rotary(g: Golden) -> None:
    tables = [floats(10, 4), floats(10, 4)]
    rows = np.array([[0, 1, 2], [4, 5, 6]])
    for flag in (0, 1):
        g.add(f"rotary {flag}", "RotaryEmbedding", [floats(2, 3, 16), rows, *tables],
              interleaved=flag)  # fmt: skip
        g.add(f"rotary of heads {flag}", "RotaryEmbedding",
              [floats(2, 2, 3, 8), np.array([3]), *tables], interleaved=flag)  # fmt: skip
    g.add("rotary of a part", "RotaryEmbedding", [floats(2, 3, 32), np.array([2]), *tables],
          num_heads=2, rotary_embedding_dim=8)  # fmt: skip


def few_bits(g: Golden) -> None:
    n, block = 6, 16
    for bits in (2, 4, 8):
        for k in (64, 40):
            blocks = -(-k // block)
            weights = [whole(np.uint8, n, blocks, block * bits // 8), small(n, blocks)]
            how = {"N": n, "K": k, "block_size": block, "bits": bits}
            g.add(f"{bits} bits, {k}", "MatMulNBits", [floats(2, 3, k), *weights],
                  known=(1, 2), **how)  # fmt: skip
            zeros = whole(np.uint8, n, -(-blocks * bits // 8))
            g.add(f"{bits} bits, {k}, zeros", "MatMulNBits",
                  [floats(3, k), *weights, zeros, None, floats(n)],
                  known=(1, 2, 3, 5), **how)  # fmt: skip
    weights = [whole(np.uint8, n, 2, 8), small(n, 2)]
    how = {"N": n, "K": 32, "block_size": block, "bits": 4}
    g.add("real zeros", "MatMulNBits", [floats(3, 32), *weights, floats(n, 2)],
          known=(1, 2, 3), **how)  # fmt: skip
    how = {"gather_axis": 0, "quantize_axis": 1, "block_size": block}
    arrays = [whole(np.uint8, 7, 16), np.array([[0, 3], [6, 1]]), small(7, 2)]
    g.add("rows of 4 bits", "GatherBlockQuantized", [*arrays, whole(np.uint8, 7, 1)],
          known=(0, 2, 3), bits=4, **how)  # fmt: skip
    arrays = [whole(np.uint8, 7, 32), np.array([2, -1]), small(7, 2)]
    g.add("rows of bytes", "GatherBlockQuantized", arrays, known=(0, 2), bits=8, **how)


def attention(g: Golden) -> None:
    def add(name: str, *extra: Any, outputs: int = 1, **attrs: Any) -> None:
        arrays = [floats(2, 3, 8), floats(8, 24, scale=0.3), floats(24), *extra]
        g.add(f"attention{name}", "Attention", arrays, outputs, num_heads=2, **attrs)

    rows = ints([[1, 1, 0], [1, 1, 1]])
    past = floats(2, 2, 2, 5, 4)
    add("")
    add(", one way", unidirectional=1, scale=0.7)
    add(", mask", rows, unidirectional=1)
    add(", all hidden", ints([[0, 0, 0], [1, 1, 1]]))
    add(", ends", ints([2, 3]))
    add(", ends and starts", ints([3, 3, 1, 0]))
    add(", mask per query", RNG.integers(0, 2, (2, 3, 3)).astype(np.int32))
    add(", bias", rows, None, floats(1, 1, 3, 3), mask_filter_value=-2.0)
    add(", present", outputs=2)
    add(", past", None, past, outputs=2, unidirectional=1)
    seen = ints([[1, 1, 1, 0, 1, 1, 1, 1], [0] + [1] * 7])
    add(", past and mask", seen, past, outputs=2, unidirectional=1)
    arrays = [floats(2, 3, 8), floats(8, 22, scale=0.3), floats(22)]
    g.add("attention, widths", "Attention", arrays, num_heads=2, qkv_hidden_sizes=[8, 8, 6])
    arrays = [whole(np.uint8, 2, 3, 8), whole(np.int8, 8, 24), floats(24), number(0.01),
              small(24), ints([2, 3]), ints(120, np.uint8)]  # fmt: skip
    g.add("attention of bytes", "QAttention", arrays, known=(1, 4), num_heads=2)


def multi_head(g: Golden) -> None:
    def add(name: str, *arrays: Any, outputs: int = 1, **attrs: Any) -> None:
        g.add(f"heads{name}", "MultiHeadAttention", arrays, outputs, num_heads=2, **attrs)

    q, k, v = floats(2, 3, 8), floats(2, 5, 8), floats(2, 5, 12)
    own, past = [floats(2, 3, 8) for _ in range(2)], [floats(2, 2, 4, 4) for _ in range(2)]
    add("", q, k, v, floats(28))
    add(", mask", q, k, v, None, ints([[1, 1, 1, 0, 0], [1] * 5]))
    add(", ends", q, k, v, None, ints([3, 5]))
    add(", bias", q, k, v, None, None, floats(1, 2, 3, 5))
    add(", one way", q, *own, unidirectional=1)
    add(", past", q, *own, None, None, None, *past, outputs=3, unidirectional=1)
    add(", across", q, floats(2, 2, 5, 4), floats(2, 2, 5, 4), floats(24))


def grouped(g: Golden) -> None:
    def add(name: str, batch: int, new: int, past: int, extra: Sequence[Any] = (),
            is_packed: bool = False, **attrs: Any) -> None:  # fmt: skip
        widths = (128,) if is_packed else (64, 32, 32)
        operands = [floats(batch, new, w) for w in widths] + [None] * (3 - len(widths))
        cache = [floats(batch, 2, past, 16) for _ in range(2)]
        total = past + new
        arrays = [*operands, *cache, np.full(batch, total - 1, np.int32), ints(total), *extra]
        how = {"num_heads": 4, "kv_num_heads": 2, **attrs}
        g.add(f"groups{name}", "GroupQueryAttention", arrays, 3, known=(6,), **how)

    tables = [floats(32, 8), floats(32, 8)]
    add("", 2, 3, 0)
    add(", past", 2, 1, 4)
    add(", more after a past", 1, 3, 4, softcap=2.0, scale=0.9)
    add(", packed", 2, 3, 0, tables, is_packed=True, do_rotary=1)
    add(", turned", 2, 1, 4, tables, do_rotary=1, rotary_interleaved=1)
    add(", bias", 2, 1, 4, [None, None, None, floats(2, 1, 1, 5)])
    for size in (1, 2, 5):
        add(f", window {size}", 1, 6, 0, local_window_size=size)
        add(f", window {size} and past", 2, 1, 6, local_window_size=size)


def bytes_(g: Golden) -> None:
    for dtype, (a, b, c) in ((np.uint8, (120, 130, 100)), (np.int8, (3, -5, 10))):
        kind, low = dtype.__name__, int(np.iinfo(dtype).min)
        x, scales = whole(dtype, 2, 3, 8), [number(0.1), number(0.07), number(0.15)]
        zeros = [ints(z, dtype) for z in (a, b, c)]
        one, other = [scales[0], zeros[0]], [scales[1], zeros[1]]
        last, unit = [scales[2], zeros[2]], [number(1 / 256), ints(low, dtype)]
        pair = [x, *one, whole(dtype, 8), *other, *last]
        g.add(f"add {kind}", "QLinearAdd", pair, known=(1, 2, 4, 5, 6, 7))
        g.add(f"mul {kind}", "QLinearMul", pair, known=(1, 2, 4, 5, 6, 7))
        after = (1, 2, 3, 4)
        g.add(f"sigmoid {kind}", "QLinearSigmoid", [x, *one, *unit], known=after)
        g.add(f"softmax {kind}", "QLinearSoftmax", [x, *one, *unit], known=after, axis=-1,
              opset=13)  # fmt: skip
        g.add(f"leaky {kind}", "QLinearLeakyRelu", [x, *one, *other], known=after, alpha=0.2)
        for flag in (0, 1):
            image = whole(dtype, 2, 5, 5, 3)
            g.add(f"mean {flag} {kind}", "QLinearGlobalAveragePool", [image, *one, *other],
                  known=after, channels_last=flag)  # fmt: skip
        parts = [*last, whole(dtype, 2, 3), *one, whole(dtype, 2, 4), *other]
        g.add(f"concat {kind}", "QLinearConcat", parts, known=(0, 1, 3, 4, 6, 7), axis=1)
        chosen = [RNG.integers(0, 2, (2, 3, 8)).astype(bool), *pair]
        g.add(f"where {kind}", "QLinearWhere", chosen, known=(2, 3, 5, 6, 7, 8))
        left, right = [whole(dtype, 4, 6), *one], [whole(np.int8, 5, 6), number(0.02)]
        bias = RNG.integers(-999, 999, (5,)).astype(np.int32)
        g.add(f"gemm {kind}", "QGemm",
              [*left, *right, ints(3, np.int8), bias, number(0.5), zeros[1]],
              known=tuple(range(1, 9)), transB=1, alpha=0.5)  # fmt: skip
        columns = [whole(np.int8, 6, 5), scales[0], small(5), zeros[0], np.zeros(5, np.int8)]
        g.add(f"to floats {kind}", "MatMulIntegerToFloat",
              [whole(dtype, 3, 4, 6), *columns, floats(5)], known=tuple(range(1, 7)))  # fmt: skip
    weights = [whole(np.int8, 6, 5), number(0.02)]
    g.add("dynamic", "DynamicQuantizeMatMul", [floats(4, 6), *weights], known=(1, 2))
    weights = [whole(np.uint8, 6, 5), small(5), whole(np.uint8, 5), floats(5)]
    g.add("dynamic columns", "DynamicQuantizeMatMul", [floats(3, 4, 6), *weights],
          known=(1, 2, 3, 4))  # fmt: skip


def lstm(g: Golden) -> None:
    def add(name: str, *extra: Any, directions: int = 1, per_column: bool = False,
            dtype: Any = np.int8, batch: int = 1, **attrs: Any) -> None:  # fmt: skip
        dims = (directions, 16) if per_column else (directions,)
        zero = np.full(dims, 0 if dtype is np.int8 else 128, dtype)
        weights = [whole(dtype, directions, n, 16) for n in (6, 4)]
        rest = [*extra, *[None] * (4 - len(extra)), small(*dims), zero, small(*dims), zero]
        arrays = [floats(5, batch, 6), *weights, floats(directions, 32), *rest]
        g.add(f"lstm{name}", "DynamicQuantizeLSTM", arrays, 3, known=(1, 2, 3, 8, 9, 10, 11),
              hidden_size=4, **attrs)  # fmt: skip

    add("")
    add(" of u8", dtype=np.uint8, clip=0.5)
    add(" per column", per_column=True, direction="reverse")
    add(" both ways", directions=2, direction="bidirectional")
    add(" with a state", None, floats(1, 1, 4), floats(1, 1, 4))
    add(" with peepholes", None, None, None, floats(1, 12))
    add(" activated", activations=["Sigmoid", "Tanh", "Relu"])
    add(" of lengths", ints([2, 4, 3]), batch=3)
    add(" of lengths both ways", ints([4, 0, 3]), floats(2, 3, 4), floats(2, 3, 4), batch=3,
        directions=2, direction="bidirectional", per_column=True)  # fmt: skip


FAMILIES: tuple[Callable[[Golden], None], ...] = (
    plain, rotary, few_bits, attention, multi_head, grouped, bytes_, lstm,
)  # fmt: skip


def main(path: str) -> None:
    golden = Golden()
    for family in FAMILIES:
        family(golden)
    np.savez_compressed(path, **golden.cases)  # pyright: ignore[reportArgumentType]


if __name__ == "__main__":
    main(sys.argv[1])
