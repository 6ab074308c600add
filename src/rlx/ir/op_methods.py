"""Every op and block as a method of a builder, made from the tables.

Type checkers and editors read the stub beside this file, which `make docs` writes.
"""

from __future__ import annotations

import difflib
import inspect
from abc import ABCMeta
from collections.abc import Callable, Iterator
from types import MethodType
from typing import TYPE_CHECKING, Any

from rlx.core.errors import UnknownNameError
from rlx.ops import op as table
from rlx.ops.call_signature import call_signature, python_name

if TYPE_CHECKING:
    from rlx.ops.op import Op


class Builder(ABCMeta):
    """The class of builders: `dir(Graph)` lists ops, `help(Graph.softmax)` describes one."""

    kinds = "method or op"

    def __dir__(cls) -> list[str]:
        return sorted({*super().__dir__(), *cls.op_names()})

    def __getattr__(cls, name: str) -> Any:
        return OpMethod(cls._op(name))

    def op_names(cls) -> Iterator[str]:
        """What its methods are called beside those that are written out."""
        return (python_name(n) for n in table.names())

    def find_op(cls, name: str) -> Op | None:
        return table.find(name)

    def _op(cls, name: str) -> Op:
        found = None if name.startswith("__") else cls.find_op(name)
        if found is None:
            near = (
                [] if name.startswith("_") else difflib.get_close_matches(name, cls.op_names(), 1)
            )
            hint = f" Did you mean {near[0]}?" if near else ""
            raise UnknownNameError(f"{cls.__name__} has no {cls.kinds} {name!r}.{hint}")
        return found


class BlockBuilder(Builder):
    """The same with blocks."""

    kinds = "method, block or op"

    def op_names(cls) -> Iterator[str]:
        from rlx.ir.block import names

        return (python_name(n) for n in (*names(), *table.names()))

    def find_op(cls, name: str) -> Op | None:
        from rlx.ir.block import find

        return find(name)


class OpMethods(metaclass=Builder):
    """A builder with each op of the table as a method."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        """The method of an op: `g.matmul(x, y)` is `rlx.ops.matmul(x, y)`."""
        return MethodType(OpMethod(type(self)._op(name)), self)  # pyright: ignore[reportPrivateUsage]

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *type(self).op_names()})


class BlockMethods(OpMethods, metaclass=BlockBuilder):
    """A builder with each op and each block as a method."""


class OpMethod:
    """The method that builds a node of an op, with its signature and docstring."""

    def __init__(self, decl: Op) -> None:
        self.decl, self.__doc__ = decl, decl.doc
        self.__name__ = self.__qualname__ = python_name(decl.name)

    @property
    def __signature__(self) -> inspect.Signature:
        own = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
        given = call_signature(self.decl)
        return given.replace(parameters=[own, *given.parameters.values()])

    def __call__(self, builder: Any, *args: Any, **attrs: Any) -> Any:
        graph: Any = vars(builder)["graph"] if isinstance(builder, BlockMethods) else builder
        return self.decl.build(graph, args, attrs)

    def __repr__(self) -> str:
        return f"<method of {self.decl!r}>"
