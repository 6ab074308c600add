"""Files made to do harm: each gives one error of rlx, quickly, and nothing else happens."""

from __future__ import annotations

import os
import urllib.parse
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import rlx
from rlx.core.errors import Error, GraphError
from rlx.frontends.onnx.files import open_inside
from rlx.frontends.onnx.model import from_proto

F = TensorProto.FLOAT
OPSETS = [helper.make_opsetid("", 21), helper.make_opsetid("own", 1)]
NUMBERS = np.arange(128, dtype=np.float32)


def value(name: str, dims: Any = (4,), kind: int = F) -> Any:
    return helper.make_tensor_value_info(name, kind, dims)


def model(
    nodes: list[Any], initialisers: list[Any] | None = None, *, functions: Any = (), **changes: Any
) -> Any:
    """A model from x to y."""
    given = {"inputs": [value("x")], "outputs": [value("y")], **changes}
    graph = helper.make_graph(nodes, "g", given["inputs"], given["outputs"], initialisers or [])
    return helper.make_model(graph, opset_imports=OPSETS, functions=list(functions))


def node(op: str, inputs: Any, outputs: Any, **attributes: Any) -> Any:
    return helper.make_node(op, inputs, outputs, **attributes)


def saved(folder: Path, proto: Any, name: str = "model.onnx") -> Path:
    path = folder / name
    path.write_bytes(proto.SerializeToString())
    return path


def outside_tensor(location: str, **keys: str) -> Any:
    """A tensor of 128 floats in another file."""
    made = TensorProto(name="w", data_type=F, dims=[128], data_location=TensorProto.EXTERNAL)
    for key, text in {"location": location, **keys}.items():
        made.external_data.add(key=key, value=text)
    return made


def outside_model(*tensors: Any) -> Any:
    """A model that adds such tensors to its input."""
    last, nodes = "x", []
    for i, tensor in enumerate(tensors):
        nodes.append(node("Add", [last, tensor.name], [f"s{i}"]))
        last = f"s{i}"
    nodes.append(node("Identity", [last], ["y"]))
    wide = {"inputs": [value("x", (128,))], "outputs": [value("y", (128,))]}
    return model(nodes, list(tensors), **wide)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the weights of a model, inside one with a secret."""
    (tmp_path / "secret.bin").write_bytes(NUMBERS.tobytes())
    inner = tmp_path / "model"
    inner.mkdir()
    (inner / "w.bin").write_bytes(NUMBERS.tobytes())
    return inner


def refuses(
    folder: Path, location: str, match: str = "folder|cannot be opened|a link", **keys: str
) -> None:
    path = saved(folder, outside_model(outside_tensor(location, **keys)))
    with pytest.raises(Error, match=match):
        rlx.load(path)


# -- external data ------------------------------------------------------------------------------


def test_external_data_in_the_folder_is_read_where_it_is(folder: Path) -> None:
    loaded = rlx.load(saved(folder, outside_model(outside_tensor("w.bin"))))
    assert not loaded.params["w"].flags.writeable
    assert not loaded.params["w"].flags.owndata
    exe = rlx.compile(loaded, "reference")
    np.testing.assert_array_equal(exe(np.ones(128, np.float32)), NUMBERS + 1)


def test_external_data_in_a_folder_inside_is_read(folder: Path) -> None:
    (folder / "data").mkdir()
    (folder / "w.bin").rename(folder / "data" / "w.bin")
    loaded = rlx.load(saved(folder, outside_model(outside_tensor("data/w.bin"))))
    np.testing.assert_array_equal(loaded.params["w"], NUMBERS)


def test_cve_2022_25882_a_path_with_dots_is_refused(folder: Path) -> None:
    for location in ("../secret.bin", "data/../../secret.bin", "./w.bin", "..", "w.bin/.."):
        refuses(folder, location, "inside the model's folder")


def test_cve_2024_27318_an_absolute_path_is_refused(folder: Path) -> None:
    refuses(folder, str(folder.parent / "secret.bin"), "inside the model's folder")
    for location in ("//secret.bin", "C:\\secret.bin", "..\\secret.bin", "\\\\host\\secret"):
        refuses(folder, location, "inside the model's folder")


def test_cve_2024_27318_a_path_in_disguise_is_a_name_like_others(folder: Path) -> None:
    disguised = urllib.parse.quote("../secret.bin", safe="")
    for location in (
        disguised, "%2e%2e/secret.bin", "..%2fsecret.bin", "\uff0e\uff0e/secret.bin",
        "..\u2215secret.bin", "..\uff0fsecret.bin", "\u2025/secret.bin", "w.bin\0/../secret.bin",
        "file:../secret.bin", "~/secret.bin", "$HOME/secret.bin",
    ):  # fmt: skip
        refuses(folder, location)


def test_cve_2026_27489_a_path_that_leaves_the_folder_when_resolved(folder: Path) -> None:
    (folder / "up").symlink_to("..")
    refuses(folder, "up/secret.bin", "cannot be opened")


def reads(path: Path) -> None:
    """A model's weights are those of the files that it was made of."""
    np.testing.assert_array_equal(rlx.load(path).params["w"], NUMBERS)


def test_cve_2026_34446_a_hard_link_to_what_fewer_can_read_is_refused(folder: Path) -> None:
    (folder.parent / "secret.bin").chmod(0o600)
    os.link(folder.parent / "secret.bin", folder / "linked.bin")
    path = saved(folder, outside_model(outside_tensor("linked.bin")))
    path.chmod(0o644)
    with pytest.raises(Error, match=r"'linked\.bin' is a hard link"):
        rlx.load(path)


def test_a_hard_link_to_what_the_readers_of_the_model_can_read_is_a_file(folder: Path) -> None:
    """Installers link the files of a package to their cache, the model's own among them."""
    path = saved(folder, outside_model(outside_tensor("w.bin")))
    os.link(folder / "w.bin", folder.parent / "cached.bin")
    reads(path)
    os.link(path, folder.parent / "cached.onnx")
    reads(path)


def test_cve_2026_34447_a_link_out_of_the_folder_is_refused_by_name(folder: Path) -> None:
    (folder / "linked.bin").symlink_to(folder.parent / "secret.bin")
    (folder / "twice.bin").symlink_to("linked.bin")
    (folder / "elsewhere").symlink_to(folder.parent)
    (folder / "itself").symlink_to(".")
    (folder / "nowhere").symlink_to("nowhere")
    for location in ("linked.bin", "twice.bin", "elsewhere/secret.bin", "itself", "nowhere"):
        refuses(folder, location, f"'{location}' cannot be opened")


def test_links_that_stay_inside_the_folder_are_followed(folder: Path) -> None:
    (folder / "inner").mkdir()
    (folder / "inner" / "linked.bin").symlink_to("../w.bin")
    (folder / "other").symlink_to("inner")
    for location in ("inner/linked.bin", "other/linked.bin"):
        reads(saved(folder, outside_model(outside_tensor(location))))


def snapshot(hub: Path, repository: str, *, has_linked_model: bool = True) -> Path:
    """A model in Hugging Face's cache: a folder of links to files that are named by their hash."""
    blobs, inner = hub / repository / "blobs", hub / repository / "snapshots" / "abc" / "onnx"
    blobs.mkdir(parents=True)
    inner.mkdir(parents=True)
    (blobs / "5feceb").write_bytes(NUMBERS.tobytes())
    (inner / "model.onnx_data").symlink_to("../../../blobs/5feceb")
    path = saved(inner, outside_model(outside_tensor("model.onnx_data")))
    if has_linked_model:
        path.rename(blobs / "6b86b2")
        path.symlink_to("../../../blobs/6b86b2")
    return path


@pytest.mark.parametrize("has_linked_model", [True, False])
def test_files_of_a_hugging_face_cache_are_followed(tmp_path: Path, has_linked_model: bool) -> None:
    reads(snapshot(tmp_path, "models--a--b", has_linked_model=has_linked_model))


def test_a_cache_of_another_model_is_refused(tmp_path: Path) -> None:
    path = snapshot(tmp_path, "models--a--b")
    snapshot(tmp_path, "models--c--d")
    data = path.parent / "model.onnx_data"
    data.unlink()
    data.symlink_to(tmp_path / "models--c--d" / "blobs" / "5feceb")
    with pytest.raises(Error, match=r"models--c--d.*neither in the model"):
        rlx.load(path)


def test_a_model_that_is_a_link_has_its_files_where_it_leads(folder: Path, tmp_path: Path) -> None:
    path = saved(folder, outside_model(outside_tensor("w.bin")))
    linked = tmp_path / "linked"
    linked.mkdir()
    for file in (path, folder / "w.bin"):
        (linked / file.name).symlink_to(file)
    reads(linked / path.name)
    (folder / "w.bin").unlink()
    (folder / "w.bin").symlink_to(tmp_path / "secret.bin")
    with pytest.raises(Error, match=r"secret\.bin"):
        rlx.load(linked / path.name)


def test_what_is_no_plain_file_is_refused(folder: Path) -> None:
    os.mkfifo(folder / "pipe")
    (folder / "inner").mkdir()
    for location in ("pipe", "inner", "missing.bin", "", "w.bin/", "x" * 5000, "w" * 300):
        refuses(folder, location)


def test_no_file_stays_open_that_was_refused(folder: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for location in ("missing", "../secret.bin", "model.onnx/x"):
        with pytest.raises(Error):
            open_inside(folder, location, "it")
    assert len(os.listdir("/proc/self/fd")) == before


def test_bytes_beyond_the_file_are_refused(folder: Path) -> None:
    refuses(folder, "w.bin", "which has 512", offset="4")
    refuses(folder, "w.bin", "which has 512", offset=str(10**17))
    refuses(folder, "w.bin", "takes 512", length="516")
    refuses(folder, "w.bin", "takes 512", length="8")


def test_offsets_that_are_no_numbers_are_refused(folder: Path) -> None:
    for text in ("-4", "1e3", "0x10", "٤", "4 ", "9" * 30, "NaN"):
        refuses(folder, "w.bin", "not a number of bytes", offset=text)


def test_tensors_that_overlap_are_refused(folder: Path) -> None:
    (folder / "two.bin").write_bytes(NUMBERS.tobytes() * 2)
    first, second = (outside_tensor("two.bin", offset=o) for o in ("0", "4"))
    second.name = "v"
    with pytest.raises(GraphError, match="overlap"):
        rlx.load(saved(folder, outside_model(first, second)))


def test_tied_weights_share_their_bytes(folder: Path) -> None:
    first, second = (outside_tensor("w.bin") for _ in range(2))
    second.name = "v"
    loaded = rlx.load(saved(folder, outside_model(first, second)))
    assert np.shares_memory(loaded.params["w"], loaded.params["v"])


def test_unknown_keys_of_external_data_are_ignored_never_set(folder: Path) -> None:
    harmless = {"checksum": "0", "__class__": "x", "folder": "/", "basepath": "/", "__len__": "1"}
    loaded = rlx.load(saved(folder, outside_model(outside_tensor("w.bin", **harmless))))
    assert not any(hasattr(loaded, k) for k in ("checksum", "basepath"))
    np.testing.assert_array_equal(loaded.params["w"], NUMBERS)


def test_a_model_that_is_no_file_has_none_beside_it() -> None:
    with pytest.raises(Error, match="was not read from one"):
        from_proto(outside_model(outside_tensor("w.bin")))


# -- the file itself ----------------------------------------------------------------------------


def test_files_that_are_no_model(tmp_path: Path) -> None:
    for content in (b"", b"\0" * 64, b"hello", os.urandom(4096), b"\x3a\xff\xff\xff\xff\x0f"):
        (tmp_path / "m.onnx").write_bytes(content)
        with pytest.raises(Error, match="is no ONNX model"):
            rlx.load(tmp_path / "m.onnx")
    for path in (tmp_path / "missing.onnx", tmp_path / "nul\0.onnx"):
        with pytest.raises(Error, match=r"cannot be read|Give a path"):
            rlx.load(path)
    os.mkfifo(tmp_path / "pipe.onnx")
    with pytest.raises(Error, match="cannot be read"):
        rlx.load(tmp_path / "pipe.onnx")


def test_a_truncated_file_is_refused_at_every_length(tmp_path: Path) -> None:
    weights = numpy_helper.from_array(np.ones((64, 64), np.float32), "w")
    whole = model([node("MatMul", ["x", "w"], ["y"])], [weights],
                  inputs=[value("x", (2, 64))], outputs=[value("y", (2, 64))])  # fmt: skip
    data = whole.SerializeToString()
    for length in [*range(200), *range(200, len(data), 701), len(data) - 1]:
        (tmp_path / "m.onnx").write_bytes(data[:length])
        with pytest.raises(Error):
            rlx.load(tmp_path / "m.onnx")


def nested_messages(depth: int) -> bytes:
    """Graphs in attributes of nodes of graphs, as bytes."""
    inner = b""
    for _ in range(depth):
        for tag in (b"\x32", b"\x2a", b"\x0a"):  # attribute.g, node.attribute, graph.node
            inner = tag + varint(len(inner)) + inner
    return b"\x08\x09\x3a" + varint(len(inner)) + inner


def varint(number: int) -> bytes:
    made = b""
    while number > 127:
        made, number = made + bytes([number & 127 | 128]), number >> 7
    return made + bytes([number])


@pytest.mark.parametrize("depth", [10, 33, 100, 20_000])
def test_messages_nested_deep_are_refused(tmp_path: Path, depth: int) -> None:
    (tmp_path / "m.onnx").write_bytes(nested_messages(depth))
    with pytest.raises(Error):
        rlx.load(tmp_path / "m.onnx")


def test_a_token_cannot_be_forged(tmp_path: Path) -> None:
    """What stands for the bytes of long tensors is random, and other bytes mean themselves."""
    long = numpy_helper.from_array(np.ones(512, np.float32), "w")
    forged = TensorProto(name="v", data_type=TensorProto.UINT8, dims=[24], raw_data=bytes(24))
    proto = model([node("Identity", ["v"], ["y"])], [long, forged], inputs=[],
                  outputs=[value("y", (24,), TensorProto.UINT8)])  # fmt: skip
    loaded = rlx.load(saved(tmp_path, proto))
    np.testing.assert_array_equal(rlx.compile(loaded, "reference")(), np.zeros(24, np.uint8))


def test_a_field_that_comes_twice_counts_as_the_parser_says(tmp_path: Path) -> None:
    """A tensor's bytes given twice, short and long: the last ones count."""
    first, last = (np.full(512, v, np.float32) for v in (1, 2))
    proto = model([node("Identity", ["w"], ["y"])],
                  [TensorProto(name="w", data_type=F, dims=[512])], inputs=[],
                  outputs=[value("y", (512,))])  # fmt: skip
    tensor = proto.graph.initializer[0].SerializeToString()
    for a in (first, last):
        tensor += b"\x4a" + varint(a.nbytes) + a.tobytes()
    del proto.graph.initializer[:]
    graph = proto.graph.SerializeToString() + b"\x2a" + varint(len(tensor)) + tensor
    proto.ClearField("graph")
    data = proto.SerializeToString() + b"\x3a" + varint(len(graph)) + graph
    (tmp_path / "m.onnx").write_bytes(data)
    made = rlx.compile(rlx.load(tmp_path / "m.onnx"), "reference")()
    np.testing.assert_array_equal(made, last)


# -- graphs that make no sense ------------------------------------------------------------------


def recursive_function(*calls: str) -> Any:
    return helper.make_function(
        "own", "f", ["x"], ["y"], [node(c, ["x"], ["y"], domain="own") for c in calls], OPSETS
    )  # fmt: skip


def doubling_functions(count: int) -> Iterator[Any]:
    """Each calls the next twice: 2 to the power of `count` nodes."""
    for i in range(count):
        last = i == count - 1
        op, domain = ("Neg", "") if last else (f"f{i + 1}", "own")
        body = [node(op, ["x"], ["m"], domain=domain), node(op, ["m"], ["y"], domain=domain)]
        yield helper.make_function("own", f"f{i}", ["x"], ["y"], body, OPSETS)


def nested_ifs(depth: int) -> Any:
    """Of a condition that is no bool."""
    made = node("Neg", ["x"], ["n0"])
    for i in range(depth):
        then = helper.make_graph([made], "g", [], [value(f"n{i}")])
        other = helper.make_graph([node("Abs", ["x"], [f"m{i}"])], "g", [], [value(f"m{i}")])
        made = node("If", ["c"], [f"n{i + 1}"], then_branch=then, else_branch=other)
    made.output[0] = "y"
    return made


def raw(dims: list[int], size: int = 16, kind: int = F) -> Any:
    return TensorProto(name="w", data_type=kind, dims=dims, raw_data=bytes(size))


def with_weight(tensor: Any) -> Any:
    return model([node("Add", ["x", "w"], ["y"])], [tensor])


def with_attribute(op: str, name: str, given: Any, inputs: Any = ("x",)) -> Any:
    return model([node(op, list(inputs), ["y"], **{name: given})])


HOSTILE: dict[str, Callable[[], Any]] = {
    "a node that uses its own result": lambda: model([node("Neg", ["y"], ["y"])]),
    "nodes that use each other's results": lambda: model(
        [node("Add", ["x", "b"], ["a"]), node("Neg", ["a"], ["b"]), node("Neg", ["b"], ["y"])]
    ),
    "an initialiser that is missing": lambda: model([node("Add", ["x", "w"], ["y"])]),
    "a result that is missing": lambda: model([node("Neg", ["x"], ["z"])]),
    "two results of one name": lambda: model(
        [node("Neg", ["x"], ["y"]), node("Abs", ["x"], ["y"])]
    ),
    "two inputs of one name": lambda: model(
        [node("Neg", ["x"], ["y"])], inputs=[value("x"), value("x")]
    ),
    "two initialisers of one name": lambda: model(
        [node("Add", ["x", "w"], ["y"])], [raw([4]), raw([4])]
    ),
    "a result named as an input": lambda: model([node("Neg", ["x"], ["x"])]),
    "a function that calls itself": lambda: model(
        [node("f", ["x"], ["y"], domain="own")], functions=[recursive_function("f")]
    ),
    "functions that are 2^60 nodes": lambda: model(
        [node("f0", ["x"], ["y"], domain="own")], functions=doubling_functions(60)
    ),
    "two functions of one name": lambda: model(
        [node("f", ["x"], ["y"], domain="own")],
        functions=[recursive_function("Neg"), recursive_function("Abs")],
    ),
    "graphs in graphs": lambda: model(
        [nested_ifs(30)],
        inputs=[value("x"), value("c", (), TensorProto.INT8)],
    ),
    "a negative dim": lambda: with_weight(raw([-4])),
    "negative dims that multiply to a size": lambda: with_weight(raw([-2, -2])),
    "a dim of 2^40": lambda: with_weight(raw([1 << 40])),
    "dims whose product passes 2^64": lambda: with_weight(raw([1 << 62, 4])),
    "no bytes for many": lambda: with_weight(raw([1 << 40], 0)),
    "bytes that are too few": lambda: with_weight(raw([4], 12)),
    "bytes that are too many": lambda: with_weight(raw([4], 20)),
    "bytes that are part of a number": lambda: with_weight(raw([4], 15)),
    "no numbers": lambda: with_weight(TensorProto(name="w", data_type=F, dims=[4])),
    "numbers in the wrong field": lambda: with_weight(
        TensorProto(name="w", data_type=F, dims=[4], int32_data=[1, 2, 3, 4])
    ),
    "an element type that is none": lambda: with_weight(raw([4], 16, 777)),
    "an undefined element type": lambda: with_weight(raw([4], 16, 0)),
    "an input of a negative dim": lambda: model(
        [node("Neg", ["x"], ["y"])], inputs=[value("x", (-7,))]
    ),
    "an attribute that is a text": lambda: with_attribute("Softmax", "axis", "one"),
    "an attribute that is a float": lambda: with_attribute("Softmax", "axis", 1.0),
    "an attribute that is a list": lambda: with_attribute("Softmax", "axis", [1, 2]),
    "an attribute that is a graph": lambda: with_attribute(
        "Softmax", "axis", helper.make_graph([], "g", [], [])
    ),
    "an attribute that is a tensor": lambda: with_attribute("Softmax", "axis", raw([4])),
    "a perm of texts": lambda: with_attribute("Transpose", "perm", ["a"]),
    "a perm that is none": lambda: with_attribute("Transpose", "perm", [3]),
    "an axis of 2^62": lambda: with_attribute("Softmax", "axis", 1 << 62),
    "no operands": lambda: model([node("Add", [], ["y"])]),
    "no operator": lambda: model([node("", ["x"], ["y"])]),
    "a target dtype that is none": lambda: with_attribute("Cast", "to", 12345),
    "an opset of old": lambda: helper.make_model(
        model([node("Neg", ["x"], ["y"])]).graph, opset_imports=[helper.make_opsetid("", 1)]
    ),
    "an opset to come": lambda: helper.make_model(
        model([node("Neg", ["x"], ["y"])]).graph, opset_imports=[helper.make_opsetid("", 10**9)]
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", HOSTILE)
def test_a_model_with(what: str, tmp_path: Path) -> None:
    path = saved(tmp_path, HOSTILE[what]())
    with pytest.raises(Error) as caught:
        rlx.load(path)
    assert len(str(caught.value)) < 2000


def test_an_attribute_of_another_type_names_the_node() -> None:
    proto = with_attribute("Softmax", "axis", "one")
    proto.graph.node[0].name = "here"
    with pytest.raises(GraphError, match="'here': attribute 'axis' is of another type"):
        from_proto(proto)


def test_a_megabyte_of_a_name_is_a_name(tmp_path: Path) -> None:
    long = "n" * (1 << 20)
    fine = model([node("Neg", ["x"], [long]), node("Abs", [long], ["y"], name=long)])
    exe = rlx.compile(rlx.load(saved(tmp_path, fine)), "reference")
    np.testing.assert_array_equal(exe(NUMBERS[:4]), NUMBERS[:4])
    for proto in (
        model([node("Neg", [long], ["y"], name=long)]),
        model([node(long, ["x"], ["y"])]),
        model([node("Neg", ["x"], ["y"], domain=long)]),
        with_attribute("Softmax", "axis", long),
        model([node("Add", ["x", long], ["y"])], [TensorProto(name=long, dims=[-1])]),
    ):
        with pytest.raises(Error) as caught:
            rlx.load(saved(tmp_path, proto))
        assert len(str(caught.value)) < 2000


def test_names_that_are_no_text(tmp_path: Path) -> None:
    proto = model([node("Neg", ["x"], ["QQQQ"]), node("Abs", ["QQQQ"], ["y"])])
    data = proto.SerializeToString().replace(b"QQQQ", b"\xff\xfe\xc0\x80")
    (tmp_path / "m.onnx").write_bytes(data)
    with pytest.raises(Error):
        rlx.load(tmp_path / "m.onnx")


@pytest.mark.parametrize(
    ("op", "operands"),
    [
        ("ConstantOfShape", [np.array([1 << 20, 1 << 20])]),
        ("Tile", [np.ones(4, np.float32), np.array([1 << 40])]),
        ("Expand", [np.ones(4, np.float32), np.array([1 << 30, 1 << 10, 4])]),
        ("Range", [np.array(v) for v in (0, 1 << 40, 1)]),
        ("Range", [np.array(v, np.float32) for v in (0, 1e12, 1)]),
        ("Range", [np.array(v) for v in (0, 9, 0)]),
        ("Pad", [np.ones(4, np.float32), np.array([1 << 40, 1 << 40])]),
        ("Resize", [np.array(v, np.float32) for v in ([1, 2, 3, 4], [], [1e12])]),
        ("OneHot", [np.array([1]), np.array(1 << 40), np.array([0.0, 1.0], np.float32)]),
    ],
)  # fmt: skip
def test_a_few_bytes_do_not_become_terabytes(op: str, operands: Any) -> None:
    """Neither while reading nor while compiling: a size like that is refused when it is run."""
    weights = [numpy_helper.from_array(a, f"w{i}") for i, a in enumerate(operands)]
    kind = TensorProto.INT64 if op == "Range" and operands[0].dtype == np.int64 else F
    made = node(op, [w.name for w in weights], ["y"])
    proto = model([made], weights, inputs=[], outputs=[value("y", None, kind)])
    with pytest.raises(Error):
        rlx.compile(from_proto(proto), "cpu")()


def test_wide_repeated_fields_are_read_in_time(tmp_path: Path) -> None:
    """100,000 initialisers and attributes nobody uses."""
    weights = [TensorProto(name=f"w{i}", data_type=F, dims=[0]) for i in range(30_000)]
    many = node("Neg", ["x"], ["y"])
    many.attribute.extend(helper.make_attribute(f"a{i}", i) for i in range(30_000))
    proto = model([many], weights)
    proto.graph.value_info.extend(value(f"v{i}") for i in range(30_000))
    loaded = rlx.load(saved(tmp_path, proto))
    np.testing.assert_array_equal(rlx.compile(loaded, "reference")(NUMBERS[:4]), -NUMBERS[:4])


def test_the_messages_that_hold_tensors_are_those_of_onnx() -> None:
    """The table of wire.py against the format's own description."""
    from rlx.frontends.onnx import protobuf_wire as wire

    def table(kind: Any, seen: tuple[str, ...] = ()) -> dict[int, Any]:
        found: dict[int, Any] = {}
        for each in kind.fields:
            if kind.name == "TensorProto":
                if each.name == "raw_data":
                    found[each.number] = None
            elif each.message_type is not None and each.message_type.name not in seen:
                inner = table(each.message_type, (*seen, kind.name))
                if inner or each.message_type.name in ("GraphProto",):
                    found[each.number] = inner
        return found

    of = onnx.ModelProto.DESCRIPTOR.fields_by_name
    graph = table(of["graph"].message_type)
    assert set(wire.GRAPH) == set(graph)
    assert set(wire.NODE) == set(graph[1])
    assert set(wire.ATTRIBUTE) == set(graph[1][5]) | {6, 11}
    assert set(wire.FUNCTION) == set(table(of["functions"].message_type))


def test_a_sequence_of_a_tensor_in_billions_of_parts_is_refused() -> None:
    """Each part would be a value of the graph."""
    node = helper.make_node("SplitToSequence", ["x"], ["s"], axis=0)
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2**31 - 1, 3])
    made = helper.make_tensor_sequence_value_info("s", TensorProto.FLOAT, None)
    graph = helper.make_graph([node], "parts", [x], [made])
    with pytest.raises(Error, match="up to 4,096"):
        from_proto(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)]))
