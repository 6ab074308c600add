"""Ensembles of trees that scikit-learn, XGBoost and LightGBM learn, as ONNX files with what those
libraries predict."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

FOLDER = Path(__file__).parent / ".cache" / "trees"
COLUMNS, LEARNT, ASKED = 30, 6000, 1000
NEEDS = "scikit-learn xgboost lightgbm skl2onnx onnxmltools"

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Forest:
    """How a model is learnt and written as ONNX. `classes` is 0 for a number."""

    classes: int
    learner: Callable[[], Any]
    library: str


def data(classes: int) -> tuple[Array, Array]:
    """Rows, and what is to be learnt of them."""
    from sklearn.datasets import make_classification, make_regression

    if not classes:
        x, y = make_regression(LEARNT, COLUMNS, noise=5, random_state=0)
    else:
        x, y = make_classification(
            LEARNT, COLUMNS, n_informative=15, n_classes=classes, random_state=0
        )
    return x.astype(np.float32), y


def _random_forest(trees: int) -> Any:
    from sklearn.ensemble import RandomForestClassifier

    return RandomForestClassifier(trees, random_state=0)


def _regression_forest(trees: int) -> Any:
    from sklearn.ensemble import RandomForestRegressor

    return RandomForestRegressor(trees, random_state=0)


def _xgboost(trees: int) -> Any:
    from xgboost import XGBClassifier

    return XGBClassifier(n_estimators=trees, max_depth=6)


def _lightgbm(trees: int) -> Any:
    from lightgbm import LGBMClassifier

    return LGBMClassifier(n_estimators=trees, verbose=-1)


FORESTS = {
    "sklearn-500": Forest(2, lambda: _random_forest(500), "sklearn"),
    "xgboost-1000": Forest(2, lambda: _xgboost(1000), "xgboost"),
    "lightgbm-1000": Forest(2, lambda: _lightgbm(1000), "lightgbm"),
    "sklearn-100x5": Forest(5, lambda: _random_forest(100), "sklearn"),
    "xgboost-500x5": Forest(5, lambda: _xgboost(100), "xgboost"),
    "lightgbm-500x5": Forest(5, lambda: _lightgbm(100), "lightgbm"),
    "sklearn-100-regression": Forest(0, lambda: _regression_forest(100), "sklearn"),
}
"""Trees, and of several classes how many there are; boosting learns a tree for each class."""


def made(name: str, folder: Path = FOLDER) -> Path:
    """The ONNX file of a model, learnt where it is not there yet; beside it are rows and what the
    library gives for them."""
    path = folder / f"{name}.onnx"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            _learn(FORESTS[name], path)
    return path


def _learn(forest: Forest, path: Path) -> None:
    import onnx

    x, y = data(forest.classes)
    model = forest.learner().fit(x, y)
    asked = x[:ASKED]
    wanted = {"label": model.predict(asked)}
    if forest.classes:
        wanted["score"] = model.predict_proba(asked)
    np.savez(path.with_suffix(".npz"), x=asked, **wanted)
    onnx.save(_converted(forest, model, x), path)


def _converted(forest: Forest, model: Any, x: Array) -> Any:
    if forest.library == "sklearn":
        from skl2onnx import to_onnx

        options = {"zipmap": False} if forest.classes else {}
        opsets = {"": 17, "ai.onnx.ml": 3}
        return to_onnx(model, x[:1], options={id(model): options}, target_opset=opsets)
    import onnxmltools
    from onnxmltools.convert.common.data_types import FloatTensorType

    types = [("x", FloatTensorType([None, COLUMNS]))]
    if forest.library == "xgboost":
        return onnxmltools.convert_xgboost(model, initial_types=types, target_opset=15)
    return onnxmltools.convert_lightgbm(
        model, initial_types=types, target_opset=15, zipmap=False
    )  # fmt: skip


def rows_of(path: Path, count: int) -> Array:
    x = np.load(path.with_suffix(".npz"))["x"][:count]
    return np.ascontiguousarray(x)


def errors(path: Path, outputs: list[Array]) -> tuple[int, float]:
    """How many labels are not the library's, and the greatest error of scores or numbers, as a
    share of the greatest of them."""
    known = np.load(path.with_suffix(".npz"))
    if "score" not in known:
        return 0, _apart(outputs[0], known["label"])
    wrong = int((outputs[0] != known["label"]).sum())
    return wrong, _apart(outputs[1], known["score"])


def _apart(got: Array, want: Array) -> float:
    wide = got.astype(np.float64).reshape(want.shape)
    return float(np.abs(wide - want).max() / np.abs(want).max())
