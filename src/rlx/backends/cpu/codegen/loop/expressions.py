"""Expressions as vectors, at one position of a loop nest."""

from __future__ import annotations

from abc import abstractmethod

from rlx.backends.cpu.codegen.loop.load_store import Memory
from rlx.backends.cpu.codegen.math import elementwise as arith
from rlx.backends.cpu.llvm.builder import Vec
from rlx.core.dtype import DType
from rlx.core.errors import Error
from rlx.kernel.expr import Apply, Choose, Const, Expr, Index, Inside, Load, Reduce, Size


class Values(Memory):
    """Computes values, each once per scope."""

    @abstractmethod
    def reduced_alone(self, r: Reduce, copy: int) -> Vec:
        """A reduction under a guard."""

    def key(self, node: Expr, copy: int) -> tuple[Expr, int]:
        return node, copy if self.spread in node.free else 0

    def needs(self, node: Expr) -> tuple[Expr, ...]:
        """The arguments that are computed before it: of a select only the decided side."""
        if node in self.at.staged:
            return ()
        match node:
            case Choose():
                return self.chosen(node) or node.args[:1]
            case Reduce():
                return ()
            case _:
                return node.args

    def chosen(self, node: Choose) -> tuple[Expr, ...]:
        """The one side, where the guard is decided."""
        guard = node.args[0]
        if not isinstance(guard, Inside) or guard not in self.at.decided:
            return ()
        return (node.args[1 if self.at.decided[guard] else 2],)

    def value(self, root: Expr, copy: int) -> Vec:
        """The vector of an expression; iterative, as bodies may be long chains."""
        stack = [root]
        while stack:
            node = stack[-1]
            if self.key(node, copy) in self.at.values:
                stack.pop()
                continue
            missing = [a for a in self.needs(node) if self.key(a, copy) not in self.at.values]
            if missing:
                stack += missing
                continue
            made = self.staged(node, copy) if node in self.in_scratch else self.compute(node, copy)
            self.at.values[self.key(node, copy)] = made
            stack.pop()
        return self.at.values[self.key(root, copy)]

    def staged(self, node: Expr, copy: int) -> Vec:
        """A row value: the first pass computes it and stages it in scratch, later ones read it."""
        if node in self.at.staged:
            return self.from_scratch(node, copy)
        value = self.compute(node, copy)
        if self.at.is_first_pass:
            self.to_scratch(node, copy, value)
        return value

    def compute(self, node: Expr, copy: int) -> Vec:
        match node:
            case Const():
                return self.code.const(node.value.item(), node.dtype.compute)
            case Size():
                whole = self.code.splat(self.dim(node.dim), DType.I64)
                return arith.cast(whole, node.dtype)
            case Index():
                return self.along(node.at, copy)
            case Inside():
                return self.inside(node, copy)
            case Load() if self.is_transposed(node):
                for number, made in enumerate(self.transposed_load(node)):
                    self.at.values[self.key(node, number)] = made
                return self.at.values[self.key(node, copy)]
            case Load():
                return self.load(node, copy, self.value)
            case Choose():
                return self.choice(node, copy)
            case Reduce():
                return self.reduced_alone(node, copy)
            case Apply():
                args = [self.value(a, copy) for a in node.args]
                given = node.args[0].dtype
                return arith.apply(node.op.name, args, node.attrs, given)
            case _:
                raise Error(f"the CPU backend does not know {type(node).__name__}")

    def inside(self, node: Inside, copy: int) -> Vec:
        if node in self.at.decided:
            return self.code.const(self.at.decided[node], DType.BOOL)
        at = self.along(node.at, copy)
        low, high = (self.code.splat(self.dim(d), DType.I64) for d in (node.low, node.high))
        return (at >= low) & (at < high)

    def choice(self, node: Choose, copy: int) -> Vec:
        """The selected side; if lanes differ both, each loaded under its mask."""
        chosen = self.chosen(node)
        if chosen:
            return self.value(chosen[0], copy)
        guard = self.value(node.args[0], copy)
        yes = self.guarded(node.args[1], copy, guard)
        return yes.where(guard, self.guarded(node.args[2], copy, ~guard))

    def guarded(self, node: Expr, copy: int, mask: Vec) -> Vec:
        """A value that is needed only where the mask holds, as if this copy were the only one."""
        guard = mask if self.at.guard is None else mask & self.at.guard
        spread, index = self.spread, dict(self.at.index)
        if spread is not None:
            index[spread] = self.position(spread, copy)
        own = {
            self.key(n, 0): v
            for (n, c), v in self.at.values.items()
            if c == (copy if spread in n.free else 0)
        }
        with self.scope(index=index, copies=1, guard=guard, values=own):
            return self.value(node, 0)
