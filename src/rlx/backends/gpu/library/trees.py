"""Decision-tree ensembles: a warp for each row and target, whose threads walk a tree each.

What the trees of a thread give is summed in f64, then what the threads have, in a fixed order.
"""

from __future__ import annotations

from dataclasses import dataclass

from rlx.backends.gpu.library.launches import Launches
from rlx.backends.gpu.library.writer import View, Writer
from rlx.backends.gpu.task import GpuTask
from rlx.core.dim import DimLike, dim_max
from rlx.core.dtype import DType
from rlx.kernel.program.schedule import Schedule
from rlx.ops.ml.trees import IDENTITY
from rlx.program.nodes import ReduceOp
from rlx.program.values import Var

I64 = DType.I64
NO_CHILD = "a child is out of range"
NO_FEATURE = "a feature or the number of a leaf is out of range"
NO_ROOT = "a root is out of range"
NO_TARGET = "the target of a leaf is out of range"
FOLDS: dict[str, ReduceOp] = {"sum": "add", "average": "add", "min": "min", "max": "max"}


def make_tree_ensemble(made: Launches) -> Schedule[GpuTask]:
    """Tables are checked first, whether a row gets there or not."""
    x, threshold, feature, child, missing, root, weight = (made.operand(i) for i in range(7))
    target = made.operand(7) if len(made.special.operands) > 7 else None
    given = _Trees(made, x, threshold, feature, child, missing, root, weight, target)
    given.check()
    given.walk()
    return made.schedule()


@dataclass(frozen=True, slots=True)
class _Trees:
    made: Launches
    x: View
    threshold: View
    feature: View
    child: View
    missing: View
    root: View
    weight: View
    target: View | None

    def _count(self, view: View, axis: int = 0) -> DimLike:
        return view.layout.dims[axis]

    @property
    def tables(self) -> tuple[View, ...]:
        found = (self.feature, self.child, self.root)
        return found if self.target is None else (*found, self.target)

    def number(self, w: Writer, view: View, at: Var, mask: Var | None = None) -> Var:
        """An entry of a table of integers, as i64; what u64 holds beyond is out of every range."""
        value = w.load(view, w.at(view.layout, (at,)), mask)[0]
        wide = value.min(1 << 62) if value.dtype is DType.U64 else value
        return wide.to(I64)

    # -- tables ----------------------------------------------------------------------------------

    def check(self) -> None:
        """Do the tables stay within themselves?"""
        attrs, block = self.made.node.attrs, self.made.machine.block
        nodes, leaves, trees = (self._count(v) for v in (self.child, self.weight, self.root))
        most = dim_max(dim_max(nodes, trees), 1 if self.target is None else leaves)

        def body(w: Writer) -> None:
            i = w.thread
            count = w.dim(nodes)
            inside = i < count
            child, feature = (self.number(w, v, i, inside) for v in (self.child, self.feature))
            last = i.to(I64) + child + 1
            strays = (child < 0) | (child > attrs["span"])
            strays = strays | (child.ne(0) & (last >= w.number(nodes).to(I64)))
            limit = w.number(leaves).where(child.eq(0), w.number(self._count(self.x, 1))).to(I64)
            w.fail(inside & strays, NO_CHILD)
            w.fail(inside & ((feature < 0) | (feature >= limit)), NO_FEATURE)
            self._within(w, self.root, trees, nodes, NO_ROOT)
            if self.target is not None:
                self._within(w, self.target, leaves, attrs["n_targets"], NO_TARGET)

        failures = (NO_CHILD, NO_FEATURE, NO_ROOT)
        self.made.program(
            "check",
            body,
            grid=((most + (block - 1)) // block,),
            block=block,
            reads=self.tables,
            failures=failures if self.target is None else (*failures, NO_TARGET),
        )

    def _within(self, w: Writer, view: View, count: DimLike, bound: DimLike, meaning: str) -> None:
        inside = w.thread < w.dim(count)
        value = self.number(w, view, w.thread, inside)
        w.fail(inside & ((value < 0) | (value >= w.number(bound).to(I64))), meaning)

    # -- rows ------------------------------------------------------------------------------------

    def walk(self) -> None:
        attrs, machine, y = self.made.node.attrs, self.made.machine, self.made.result()
        targets, rows = attrs["n_targets"], self._count(self.x)
        per_block = machine.block // machine.warp
        first, fold = IDENTITY[attrs["aggregate"]], FOLDS[attrs["aggregate"]]
        trees = self._count(self.root)

        def body(w: Writer) -> None:
            b = w.b
            number = w.block_index() * per_block + w.wide(b.warp)
            with b.when(number < w.number(rows) * targets):
                row, own = number // targets, number % targets
                total = b.variable(first, machine.wide_float)
                with b.loop(w.wide(b.lane), w.dim(trees), machine.warp, carry=[total]) as tree:
                    total.set(b.binary(fold, total, self._given(w, row, own, tree, first)))
                whole = b.warp_reduce(fold, total, machine.warp)
                if attrs["aggregate"] == "average":
                    whole = whole / w.number(dim_max(trees, 1)).to(machine.wide_float)
                made = whole.to(y.dtype.compute).to(y.dtype)
                w.ref(y).store(w.at(y.layout, (row, own)), [made], b.lane.eq(0))

        reads = (self.x, self.threshold, self.missing, self.weight, *self.tables)
        self.made.program(
            "walk",
            body,
            grid=((rows * targets + (per_block - 1)) // per_block,),
            block=machine.block,
            reads=reads,
            writes=(y,),
            note="a warp a row and target, a thread a tree",
        )

    def _given(self, w: Writer, row: Var, own: Var, tree: Var, nothing: float) -> Var:
        """What a tree gives to this target."""
        leaf = self._leaf(w, row, tree)
        is_leaf = (leaf >= 0) & (leaf < w.number(self._count(self.weight)).to(I64))
        at = w.wide(leaf.where(is_leaf, 0))
        column = own if self.target is None else w.number(0)
        value = w.element(self.weight, (at, column), is_leaf).to(self.made.machine.wide_float)
        if self.target is None:
            return value
        is_own = is_leaf & self.number(w, self.target, at, is_leaf).eq(own.to(I64))
        return value.where(is_own, nothing)

    def _leaf(self, w: Writer, row: Var, tree: Var) -> Var:
        """The number of the leaf that the row comes to: children follow their nodes, so a walk
        ends. One that leads out of the table stays where it is, which was reported."""
        b, count = w.b, w.number(self._count(self.child)).to(I64)
        start = self.number(w, self.root, tree)
        node = b.variable(start.max(0).min((count - 1).max(0)))
        with b.repeat([node]) as again:
            step = self.number(w, self.child, w.wide(node), count > 0)
            again.when((step > 0) & (node + step + 1 < count))
            at = w.wide(node)
            step = self.number(w, self.child, at)
            is_first = self._is_first(w, row, at)
            node.set(node + step.where(is_first, step + 1))
        return self.number(w, self.feature, w.wide(node), count > 0)

    def _is_first(self, w: Writer, row: Var, at: Var) -> Var:
        columns = w.number(self._count(self.x, 1)).to(I64)
        feature = self.number(w, self.feature, at)
        inside = (feature >= 0) & (feature < columns)
        value = w.element(self.x, (row, w.wide(feature.where(inside, 0))), inside)
        missing = w.load(self.missing, w.at(self.missing.layout, (at,)))[0]
        return (value <= w.element(self.threshold, (at,))) | (value.ne(value) & missing)
