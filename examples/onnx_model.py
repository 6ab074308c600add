"""An ONNX file: compiled once for all sizes, called by position, by keyword and by name, saved."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import rlx


def write_classifier(path: Path) -> None:
    """Any model would do; this one is a layer of 16 features and 4 classes."""
    rng = np.random.default_rng(0)
    weights = numpy_helper.from_array(rng.normal(size=(16, 4)).astype(np.float32), "weights")
    features = helper.make_tensor_value_info("features", TensorProto.FLOAT, ["rows", 16])
    classes = helper.make_tensor_value_info("classes", TensorProto.FLOAT, ["rows", 4])
    nodes = [
        helper.make_node("MatMul", ["features", "weights"], ["logits"]),
        helper.make_node("Softmax", ["logits"], ["classes"], axis=-1),
    ]
    graph = helper.make_graph(nodes, "classifier", [features], [classes], [weights])
    opset = helper.make_opsetid("", 21)
    onnx.save(helper.make_model(graph, opset_imports=[opset], ir_version=10), path)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "classifier.onnx")
        write_classifier(path)
        exe = rlx.compile(path)
        print(exe)

        for rows in (1, 3, 100):  # "rows" is a named dim: one program serves all sizes
            print(rows, "rows:", exe(np.ones((rows, 16), np.float32)).shape)

        out = np.empty((3, 4), np.float32)  # no allocation in the call
        exe(features=np.zeros((3, 16), np.float32), out=out)
        assert np.allclose(out, 0.25)

        exe.save(Path(folder, "classifier.rlx"))  # opens without LLVM, on machines of the same kind
        again = rlx.load(Path(folder, "classifier.rlx"))
        x = np.random.default_rng(1).normal(size=(5, 16)).astype(np.float32)
        assert np.array_equal(again(x), exe(x))


if __name__ == "__main__":
    main()
