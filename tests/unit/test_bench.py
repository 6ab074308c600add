"""The benched workloads compute what their plain NumPy meaning says, at small sizes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlx
from bench import cache, page, results_file
from bench.conductor import Measured, Row
from bench.large import case_of
from bench.lm import page as lm_page
from bench.lm.worker import read, written
from bench.machine import description
from bench.rooflines import LEFT_OUT, graph_of
from bench.table import Line, lines, text
from bench.workload import Workload, errors
from bench.workloads import chosen, dense, llama, minilm, resnet, spectral
from rlx.lm.bench import workloads_of
from rlx.ops.op import table

ENCODER = minilm.Size(layers=2, width=16, heads=2, hidden=24, words=60, places=12)
DECODER = llama.Size(
    layers=2, width=16, heads=4, kv_heads=2, hidden=24, words=30, places=20
)  # fmt: skip
NETWORK = resnet.Size(stages=(4, 6), classes=5, image=16)

SMALL: dict[str, Callable[[], Workload]] = {
    "mlp": lambda: dense.mlp(3, 8, 12),
    "tiny": lambda: dense.tiny(6, 2),
    "one sentence": lambda: minilm.minilm(1, 5, minilm.random_params(ENCODER), ENCODER),
    "sentences": lambda: minilm.minilm(3, 7, minilm.random_params(ENCODER), ENCODER),
    "prefill": lambda: llama.prefill(llama.llama_params(DECODER), 6, DECODER),
    "decode": lambda: llama.decode(llama.llama_params(DECODER), 9, DECODER),
    "resnet": lambda: resnet.resnet(resnet.resnet_params(NETWORK), NETWORK),
    "welch": lambda: spectral.welch(2, 96, 32, 3),
    "logmel": lambda: spectral.logmel(2, 120, 20, 10, 4),
    "softmax": lambda: dense.softmax(4, 6),
    "chain": lambda: dense.chain(4, 6),
    "layernorm": lambda: dense.layernorm(4, 6),
}


@pytest.mark.parametrize("name", SMALL)
def test_model_agrees_with_its_meaning(name: str) -> None:
    """Within a few hundred roundings of f32, of which the longest workload has that many rows."""
    workload = SMALL[name]()
    params = workload.rlx_params()
    made = rlx.compile(workload.model(params), "reference", params=params)(*workload.inputs)
    made = made if isinstance(made, tuple) else (made,)
    assert errors(made, cache.run(workload)) < 1e-5


def test_a_named_length_is_the_same_encoder() -> None:
    params = minilm.random_params(ENCODER)
    fixed = minilm.minilm(2, 6, params, ENCODER)
    given = fixed.rlx_params()
    model = minilm.minilm_model(given, 2, rlx.Dim("seq", 1, ENCODER.places), ENCODER)
    made = rlx.compile(model, "reference", params=given)(*fixed.inputs)
    assert errors((made,), cache.run(fixed)) < 1e-5


def test_errors_see_a_wrong_answer() -> None:
    right = np.ones((2, 3))
    assert errors((right,), (right,)) == 0
    assert errors((right * 1.5,), (right,)) == pytest.approx(0.5)
    assert errors((right[:1],), (right,)) == float("inf")
    assert errors((right * np.nan,), (right,)) == float("inf")


def test_names_are_chosen_by_their_beginnings() -> None:
    assert chosen("A,C1x128") == ["A_mlp", "C_1x128"]
    assert chosen("G_chain") == ["G_chain"]
    with pytest.raises(SystemExit, match="no workload"):
        chosen("Z")


def test_other_weights_have_another_key() -> None:
    """What is kept on disk for one set of weights is not taken for another's."""
    one, same, other = (dense.tiny(n, 2) for n in (6, 6, 7))
    params = minilm.random_params(ENCODER)
    changed = {**params, "emb.word": params["emb.word"] + 1}
    assert one.key == same.key != other.key
    assert len({minilm.minilm(1, 5, p, ENCODER).key for p in (params, changed)}) == 2


def test_a_line_is_measured_within_rounds() -> None:
    """The machine slows down threefold in the second round; the ratio does not see it."""
    ours = Row("rlx", setup=FAIR, turns=[[100.0, 110.0, 90.0], [300.0], [100.0]])
    best = Row("jax", setup=FAIR, turns=[[200.0], [600.0, 600.0], [200.0]])
    wrong = Row("torch", setup={**FAIR, "error": 1.0}, turns=[[1.0], [1.0], [1.0]])
    absent = Row("iree", why="absent: iree not installed")
    workload = dense.tiny(6, 2)
    made = lines(Measured("B_tiny", [ours, best, wrong, absent], [1.0]), workload, 0.05)
    assert [line.ratio for line in made] == [0.5, 1.0, pytest.approx(0.005), None]
    assert [line.is_right for line in made] == [True, True, False, True]
    assert made[0].floor_share == pytest.approx(0.5)
    assert not made[0].is_noisy
    assert lines(Measured("B_tiny", [ours, best], [0.5]), workload, None)[0].is_noisy
    assert "WRONG" in text("B", made)
    assert "not installed" in text("B", made)


def test_every_op_has_a_large_case_or_a_reason() -> None:
    """About a million elements go in or out; fewer where the work grows faster than they do."""
    for op in table().values():
        case = case_of(op)
        if case is None:
            assert op.kind in LEFT_OUT or not op.signature.operands or op.name in OTHERS, op.name
            continue
        graph = graph_of(case)
        shapes = [n.shape for n in (*graph.inputs, *graph.outputs)]
        largest = max(int(s.num_elements) for s in shapes if s.is_static)
        assert largest >= 30_000, op.name


OTHERS = {"item", "arange", "custom", "as_size", "same_size"}
FAIR = {"error": 1e-7, "one_s": 1e-3, "setup_s": 0.1, "peak_mb": 10}


def test_the_page_says_where_we_stand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two runs of a workload the newer one counts."""
    monkeypatch.setattr(results_file, "ROOT", tmp_path)
    for day, ours in ((1, 400.0), (2, 100.0)):
        rows = [Row("rlx", setup=FAIR, turns=[[ours]]), Row("jax", setup=FAIR, turns=[[200.0]])]
        made = lines(Measured("B_tiny", rows, [1.0]), dense.tiny(6, 2), 0.05)
        results_file.save(f"day{day}", a_run(f"2026-01-0{day} 10:00", made))
    page.write()
    shown = (tmp_path / "README.md").read_text()
    assert "- Ahead of every peer: B_tiny." in shown
    assert "0.1 µs" in shown
    assert "0.50×" in shown
    assert "Behind" not in shown


def a_run(date: str, made: list[Line]) -> dict[str, Any]:
    return {
        "date": date,
        "machine": description(),
        "limits": {"gflops": 1, "read_gb_s": 1, "copy_gb_s": 1, "cache_gb_s": 1},
        "plan": {"threads": 2},
        "versions": {"jax": "1"},
        "workloads": {"B_tiny": {"about": "three layers", "floor_us": 0.05}},
        "lines": [line.as_dict() for line in made],
    }


def test_the_page_of_language_models_has_a_row_for_each_workload() -> None:
    made = [
        {"file": "a.gguf", "test": test, "threads": n, "rates": {"rlx": 30.0 * n, "llama.cpp": 20},
         "ratios": {"llama.cpp": 1.5 * n}}
        for n in (1, 2) for test in ("pp128", "tg64")
    ]  # fmt: skip
    kl = [(2e-3, 1e-4), (3e-3, 1e-4)]
    found = lm_page.text({
        "machine": description(), "versions": {"rlx": "1"}, "rows": made[:-1],
        "predictions": [{"file": "a.gguf", "tokens": 64, "exact": 1e-6, "kl": kl}],
    })  # fmt: skip
    assert "| a.gguf | pp128 | 30 | 20 | 1.50 | 60 | 20 | 3.00 |" in found
    assert "| a.gguf | tg64 | 30 | 20 | 1.50 |  |  |  |" in found
    assert "| a.gguf | 64 | 1.0e-06 | 2.00e-03 ± 1e-04 | 3.00e-03 ± 1e-04 |" in found


def test_workloads_of_language_models_are_read_as_they_were_written() -> None:
    tests = workloads_of([128, 0], [64], [0, 2048], [1, 8])
    assert len(tests) == 8
    assert [read(written(test)) for test in tests] == tests
