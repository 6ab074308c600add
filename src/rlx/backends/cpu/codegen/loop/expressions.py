"""Expressions as vectors, at one position of a loop nest."""

from __future__ import annotations

from collections.abc import Callable

from rlx.backends.cpu.codegen.loop.load_store import LoadStore
from rlx.backends.cpu.codegen.loop.scope import LoopContext
from rlx.backends.cpu.codegen.loop.scratch import Scratch
from rlx.backends.cpu.codegen.math import elementwise as arith
from rlx.backends.cpu.llvm.values import Vec
from rlx.core.dtype import DType
from rlx.core.errors import Error
from rlx.kernel.expr import Apply, Choose, Const, Expr, Index, Inside, Load, Reduce, Size


class Expressions:
    """Computes values, each once per scope. A reduction under a guard is left to `reduce`, which
    adds its value to the scope."""

    def __init__(
        self,
        context: LoopContext,
        memory: LoadStore,
        scratch: Scratch,
        reduce: Callable[[Reduce], None],
    ) -> None:
        self.context, self.code = context, context.code
        self.memory, self.scratch, self.reduce = memory, scratch, reduce

    def needs(self, node: Expr) -> tuple[Expr, ...]:
        """The arguments that are computed before it: of a select only the decided side."""
        if node in self.context.at.staged:
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
        guard, decided = node.args[0], self.context.at.decided
        if not isinstance(guard, Inside) or guard not in decided:
            return ()
        return (node.args[1 if decided[guard] else 2],)

    def value(self, root: Expr, copy: int) -> Vec:
        """The vector of an expression; iterative, as bodies may be long chains."""
        key, values, stack = self.context.key, self.context.at.values, [root]
        while stack:
            node = stack[-1]
            if key(node, copy) in values:
                stack.pop()
                continue
            missing = [a for a in self.needs(node) if key(a, copy) not in values]
            if missing:
                stack += missing
                continue
            values[key(node, copy)] = self._made(node, copy)
            stack.pop()
        return values[key(root, copy)]

    def _made(self, node: Expr, copy: int) -> Vec:
        """A row value is computed and staged in scratch by the first pass; later ones read it."""
        if node not in self.scratch.rows:
            return self.compute(node, copy)
        if node in self.context.at.staged:
            return self.scratch.load(node, copy)
        value = self.compute(node, copy)
        if self.context.at.is_first_pass:
            self.scratch.store(node, copy, value)
        return value

    def compute(self, node: Expr, copy: int) -> Vec:
        context, code = self.context, self.code
        match node:
            case Const():
                return code.const(node.value.item(), node.dtype.compute)
            case Size():
                return arith.cast(code.splat(context.dim(node.dim), DType.I64), node.dtype)
            case Index():
                return context.along(node.at, copy)
            case Inside():
                return self.inside(node, copy)
            case Load():
                return self.load(node, copy)
            case Choose():
                return self.choice(node, copy)
            case Reduce():
                self.reduce(node)
                return context.at.values[context.key(node, copy)]
            case Apply():
                args = [self.value(a, copy) for a in node.args]
                return arith.apply(node.op.name, args, node.attrs, node.args[0].dtype)
            case _:
                raise Error(f"the CPU backend does not know {type(node).__name__}")

    def load(self, node: Load, copy: int) -> Vec:
        if not self.memory.is_transposed(node):
            row = self.value(node.args[0], copy) if node.args else None
            return self.memory.load(node, copy, row)
        key, values = self.context.key, self.context.at.values
        for number, made in enumerate(self.memory.transposed_load(node)):
            values[key(node, number)] = made
        return values[key(node, copy)]

    def inside(self, node: Inside, copy: int) -> Vec:
        context, code = self.context, self.code
        if node in context.at.decided:
            return code.const(context.at.decided[node], DType.BOOL)
        at = context.along(node.at, copy)
        low, high = (code.splat(context.dim(d), DType.I64) for d in (node.low, node.high))
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
        context, at, spread = self.context, self.context.at, self.context.spread
        guard, index = mask if at.guard is None else mask & at.guard, dict(at.index)
        if spread is not None:
            index[spread] = context.position(spread, copy)
        own = {
            context.key(n, 0): v
            for (n, c), v in at.values.items()
            if c == (copy if spread in n.free else 0)
        }
        with context.scope(index=index, copies=1, guard=guard, values=own):
            return self.value(node, 0)
