"""Models of tensors by KServe's protocol."""

from __future__ import annotations

import http.client
import json
import struct
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import rlx
from rlx import Dim, DType, Shape
from tests.serve import serving

X = np.arange(6, dtype=np.float32).reshape(2, 3)


def executable() -> rlx.Executable:
    g = rlx.Graph("net")
    x = g.input("x", Shape([Dim("rows", 1, 100), 3]))
    n = g.input("n", Shape([], DType.I64))
    g.set_outputs({"double": g.add(x, x), "next": g.add(n, 1), "root": g.sqrt(x)})
    return rlx.compile(g)


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    serving.skip_without_packages()
    from rlx.serve import Settings, tensor_model_app

    settings = Settings(name="net", max_body_bytes=1 << 20)
    with serving.running(tensor_model_app(executable(), settings, 2)) as (address, _):
        yield int(address.rpartition(":")[2])


def sent(
    port: int, method: str, path: str, body: bytes | None = None, **headers: str
) -> tuple[int, bytes, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request(method, path, body, {"Content-Type": "application/json", **headers})
        answer = connection.getresponse()
        return answer.status, answer.read(), answer.headers
    finally:
        connection.close()


def tensor(name: str, kind: str, array: Any, **more: Any) -> dict[str, Any]:
    values = np.asarray(array)
    return {"name": name, "datatype": kind, "shape": list(values.shape), **more}


def infer(port: int, **body: Any) -> tuple[int, Any]:
    status, data, _ = sent(port, "POST", "/v2/models/net/infer", json.dumps(body).encode())
    return status, json.loads(data)


def inputs(**other: Any) -> list[dict[str, Any]]:
    x = tensor("x", "FP32", X, data=X.ravel().tolist())
    return [{**x, **other}, tensor("n", "INT64", 4, data=[4])]


def test_health_and_metadata(port: int) -> None:
    for path in ("/v2/health/live", "/v2/health/ready", "/v2/models/net/ready", "/v2", "/health"):
        assert sent(port, "GET", path)[0] == 200
    status, data, _ = sent(port, "GET", "/v2/models/net/versions/1")
    found = json.loads(data)
    assert status == 200
    assert found["inputs"] == [
        {"name": "x", "datatype": "FP32", "shape": [-1, 3]},
        {"name": "n", "datatype": "INT64", "shape": []},
    ]
    assert [o["name"] for o in found["outputs"]] == ["double", "next", "root"]
    assert sent(port, "GET", "/v2/models/other")[0] == 404


@pytest.mark.parametrize("data", [X.ravel().tolist(), X.tolist()], ids=["flat", "nested"])
def test_tensors_as_json(port: int, data: Any) -> None:
    status, answer = infer(port, id="7", inputs=inputs(data=data))
    assert status == 200
    assert answer["id"] == "7"
    double, following, _ = answer["outputs"]
    assert double == {"name": "double", "datatype": "FP32", "shape": [2, 3],
                      "data": (2 * X).ravel().tolist()}  # fmt: skip
    assert following["data"] == [5]
    status, answer = infer(port, inputs=inputs(), outputs=[{"name": "next"}])
    assert [o["name"] for o in answer["outputs"]] == ["next"]


def test_tensors_as_bytes(port: int) -> None:
    x = tensor("x", "FP32", X, parameters={"binary_data_size": X.nbytes})
    n = tensor("n", "INT64", 4, parameters={"binary_data_size": 8})
    wanted = [
        {"name": "double", "parameters": {"binary_data": True}}, {"name": "next"},
    ]  # fmt: skip
    front = json.dumps({"inputs": [x, n], "outputs": wanted}).encode()
    body = front + X.tobytes() + struct.pack("<q", 4)
    size = {"Inference-Header-Content-Length": str(len(front))}
    status, data, headers = sent(port, "POST", "/v2/models/net/infer", body, **size)
    assert status == 200
    at = int(headers["Inference-Header-Content-Length"])
    double, following = json.loads(data[:at])["outputs"]
    assert double["parameters"] == {"binary_data_size": X.nbytes}
    assert np.array_equal(np.frombuffer(data[at:], np.float32).reshape(2, 3), 2 * X)
    assert following["data"] == [5]


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"inputs": []}, "no value for"),
        ({"inputs": {}}, "must be a list"),
        ({"inputs": [*inputs(), {"name": "y", "datatype": "FP32", "shape": [0], "data": []}]},
         "there is no input 'y'"),
        ({"inputs": inputs(shape=[7])}, "not those of [7]"),
        ({"inputs": inputs(shape=[1 << 39, 1 << 39])}, "elements, not those of"),
        ({"inputs": inputs(shape=[-1, -6])}, "must be sizes"),
        ({"inputs": inputs(shape=[3, 2])}, "x"),
        ({"inputs": inputs(datatype="FP8")}, "'FP8' is not known"),
        ({"inputs": inputs(datatype="INT32")}, "not INT32"),
        ({"inputs": inputs(data=[[1], [2, 3]])}, "differ in length"),
        ({"inputs": inputs(data=["a"] * 6)}, "not FP32"),
        ({"inputs": inputs(data=[{}] * 6)}, "not FP32"),
        ({"inputs": inputs(datatype="UINT8", data=[300] * 6)}, "does not fit UINT8"),
        ({"inputs": inputs(parameters={"binary_data_size": 24})}, "not in the body"),
        ({"inputs": inputs(), "outputs": [{"name": "no"}]}, "no output 'no'"),
        ({"inputs": inputs(data=[-1.0] * 6)}, "ask for binary data"),
    ],
)  # fmt: skip
def test_wrong_requests(port: int, wrong: Any, text: str) -> None:
    status, answer = infer(port, **wrong)
    assert status == 400, answer
    assert text in answer["error"]


def test_wrong_bodies(port: int) -> None:
    path = "/v2/models/net/infer"
    for header in ("x", "-1", "999"):
        assert (
            sent(port, "POST", path, b"{}", **{"Inference-Header-Content-Length": header})[0] == 400
        )
    assert sent(port, "POST", path, b"\x00" * (2 << 20))[0] == 413
    assert sent(port, "POST", path, b"[" * 100_000)[0] == 400
    front = json.dumps({"inputs": inputs()}).encode()
    more = {"Inference-Header-Content-Length": str(len(front))}
    status, data, _ = sent(port, "POST", path, front + b"more", **more)
    assert (status, "belong to no tensor" in data.decode()) == (400, True)


def test_strings_and_half_floats() -> None:
    serving.skip_without_packages()
    from rlx.serve.body import Fields
    from rlx.serve.tensors import Binary, array_of, tensor_of

    texts = np.array(["a", "é"], object)
    for is_binary in (False, True):
        head, data = tensor_of("t", texts, is_binary=is_binary)
        assert array_of(Fields(head), Binary(data)).tolist() == ["a", "é"]
    for dtype in (DType.F16, DType.BF16):
        values = np.array([1.5, -2.0], dtype.numpy)
        for is_binary in (False, True):
            head, data = tensor_of("t", values, is_binary=is_binary)
            assert np.array_equal(array_of(Fields(head), Binary(data)), values)


def test_a_name_with_slashes() -> None:
    serving.skip_without_packages()
    from rlx.serve import Settings, tensor_model_app

    app = tensor_model_app(executable(), Settings(name="org/net"), 1)
    with serving.running(app) as (address, _):
        port = int(address.rpartition(":")[2])
        for name in ("org/net", "org%2Fnet"):
            for path in ("", "/ready", "/versions/1", "/versions/1/ready"):
                assert sent(port, "GET", f"/v2/models/{name}{path}")[0] == 200
            body = json.dumps({"inputs": inputs()}).encode()
            assert sent(port, "POST", f"/v2/models/{name}/versions/1/infer", body)[0] == 200
        assert sent(port, "GET", "/v2/models/net")[0] == 404


def test_inputs_that_are_there_twice(port: int) -> None:
    status, answer = infer(port, inputs=[*inputs(), inputs()[0]])
    assert (status, answer["error"]) == (400, "there are two inputs 'x'.")
