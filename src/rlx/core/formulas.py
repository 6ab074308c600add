"""Symbolic dims compiled to Python code, evaluated in a microsecond."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from rlx.core.dim import Atom, Dim, DimLike, Symbol
from rlx.core.errors import GraphError
from rlx.core.intervals import safe_div, safe_mod


def compile_dims(dims: Sequence[DimLike], names: Sequence[str]) -> Callable[..., tuple[int, ...]]:
    """A function of the named sizes, in order, that gives every dim's value.

    The source holds numbered locals and integers only, never a name from a model.
    """
    local = {name: f"d{i}" for i, name in enumerate(names)}
    body = "".join(f"{_source(d, local)}," for d in dims)
    source = f"lambda {','.join(local.values())}: ({body})"
    scope: dict[str, object] = {
        "__builtins__": {},
        "max": max,
        "min": min,
        "div": safe_div,
        "mod": safe_mod,
    }
    return eval(source, scope)


def _source(dim: DimLike, local: Mapping[str, str]) -> str:
    if not isinstance(dim, Dim):
        return str(int(dim))
    return "+".join("*".join([str(c), *(_atom_source(a, local) for a in m)]) for m, c in dim.terms)


def _atom_source(atom: Atom, local: Mapping[str, str]) -> str:
    if isinstance(atom, Symbol):
        if atom.name not in local:
            raise GraphError(f"a size is a formula of {atom.name!r}, which is not among its dims.")
        return local[atom.name]
    fn = {"//": "div", "%": "mod"}.get(atom.fn, atom.fn)
    return f"{fn}({', '.join(_source(a, local) for a in atom.args)})"
