"""An encoder of the BERT family in blocks, with its weights as they are in the file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rlx.core.dim import Dim
from rlx.core.dtype import DType
from rlx.core.errors import Error
from rlx.core.shape import Shape
from rlx.frontends.safetensors.naming import Naming, Sizes
from rlx.ir.hir import FusionPolicy, HirModule
from rlx.ir.mir import Node
from rlx.ops.op import Array

NORMS = frozenset({4, 7})
"""Which of a layer's parts are norms; the others are linear layers: weights are transposed."""
EMBEDDINGS = "embeddings"
KINDS = f"{EMBEDDINGS}.token_type_embeddings.weight"
POOLER = "pooler.dense"


@dataclass(slots=True)
class Builder:
    """Builds a module, and remembers which weights it took."""

    module: HirModule
    tensors: Mapping[str, Array]
    prefix: str
    where: Path
    taken: dict[str, Node] = field(default_factory=dict[str, Node])

    def has(self, name: str) -> bool:
        return self.prefix + name in self.tensors

    def weight(self, name: str, *dims: int | None) -> Node:
        """A weight of these dims, None any; half floats are computed with in f32."""
        full = self.prefix + name
        if full not in self.taken:
            self.taken[full] = self._declared(full, dims)
        node = self.taken[full]
        return node if node.shape.dtype is DType.F32 else self.module.cast(node, to="f32")

    def transposed(self, name: str, *dims: int | None) -> Node:
        """The weight of a linear layer, which files store as [out, in]."""
        return self.module.transpose(self.weight(name, *dims), perm=(1, 0))

    def _declared(self, name: str, dims: tuple[int | None, ...]) -> Node:
        if name not in self.tensors:
            raise Error(f"{self.where} has no tensor {name!r}, which its configuration asks for.")
        array = self.tensors[name]
        fits = len(dims) == array.ndim and all(d in (None, n) for d, n in zip(dims, array.shape))
        if not fits or not DType.of(array.dtype).is_float:
            wanted = ", ".join("any" if d is None else str(d) for d in dims)
            found = Shape(array.shape, DType.of(array.dtype))
            raise Error(f"{self.where}: tensor {name!r} is {found}, expected floats [{wanted}].")
        return self.module.param(name, Shape(array.shape, DType.of(array.dtype)))


@dataclass(frozen=True, slots=True)
class Encoded:
    """What pooling is given: the rows of each token, and which tokens there are."""

    build: Builder
    rows: Node
    mask: Node
    sizes: Sizes


def encoder(
    name: str, sizes: Sizes, naming: Naming, tensors: Mapping[str, Array], where: Path
) -> Encoded:
    """The encoder's graph for any number and any length of texts, without outputs."""
    prefix = naming.prefix if any(n.startswith(naming.prefix) for n in tensors) else ""
    build = Builder(HirModule(name, FusionPolicy.FUSABLE), tensors, prefix, where)
    build.module.graph.traces_lines = False  # nodes are named by their blocks
    m, positions = build.module, f"{EMBEDDINGS}.position_embeddings.weight"
    table = build.weight(positions, None, sizes.width)
    first = sizes.padding + 1 if naming.starts_after_padding else 0
    most = int(str(table.shape.dims[0])) - first
    if most < 1:
        raise Error(f"{where}: it has no positions left after those of padding.")
    batch, length = Dim("batch"), Dim("length", 1, most)
    ids, mask = (
        m.input(n, Shape([batch, length], DType.I64)) for n in ("input_ids", "attention_mask")
    )
    rows = _embedded(build, sizes, naming, ids, table)
    seen = m.not_equal(mask, 0)
    for i in range(sizes.layers):
        with m.scope(naming.layer.format(i)):
            rows = _layer(build, sizes, naming, i, rows, seen)
    return Encoded(build, rows, mask, sizes)


def _embedded(build: Builder, sizes: Sizes, naming: Naming, ids: Node, table: Node) -> Node:
    m = build.module
    norm = [build.weight(f"{EMBEDDINGS}.LayerNorm.{n}", sizes.width) for n in ("weight", "bias")]
    words = build.weight(f"{EMBEDDINGS}.word_embeddings.weight", None, sizes.width)
    extras: dict[str, Any] = {}
    if build.has(KINDS):
        extras["kind_table"] = build.weight(KINDS, None, sizes.width)
        if not naming.starts_after_padding:
            extras["kinds"] = m.input("token_type_ids", ids.shape)
    if naming.starts_after_padding:
        extras["places"] = _places(m, ids, sizes.padding)
    with m.scope(EMBEDDINGS):
        return m.bert_embeddings(ids, words, table, *norm, eps=sizes.eps, **extras)


def _places(m: HirModule, ids: Node, padding: int) -> Node:
    """Tokens are counted from the number of padding on; padding itself stays there."""
    is_text = m.cast(m.not_equal(ids, padding), to="i64")
    return m.add(m.mul(m.cumsum(is_text, axis=1), is_text), padding)


def _layer(
    build: Builder, sizes: Sizes, naming: Naming, number: int, rows: Node, seen: Node
) -> Node:
    width, hidden = sizes.width, sizes.hidden
    shapes = [(width, width)] * 4 + [(width,), (hidden, width), (width, hidden), (width,)]
    operands: list[Any] = []
    for i, (part, dims) in enumerate(zip(naming.parts, shapes)):
        place = f"{naming.layer.format(number)}.{part}"
        made = build.weight if i in NORMS else build.transposed
        operands += [made(f"{place}.weight", *dims), build.weight(f"{place}.bias", dims[0])]
    return build.module.encoder_block(
        rows, *operands, mask=seen, num_heads=sizes.heads, eps=sizes.eps, mask_kind="custom",
        approximate=sizes.is_tanh_gelu,
    )  # fmt: skip


def pooled(encoded: Encoded) -> Node | None:
    """The encoder's own summary of a text, where it has one."""
    build, width = encoded.build, encoded.sizes.width
    if not build.has(f"{POOLER}.weight"):
        return None
    with build.module.scope(POOLER):
        weight = build.transposed(f"{POOLER}.weight", width, width)
        return build.module.pooler(encoded.rows, weight, build.weight(f"{POOLER}.bias", width))
