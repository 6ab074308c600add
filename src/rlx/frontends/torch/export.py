"""From a module to an ExportedProgram: torch.export, with the sizes that were asked for."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rlx.core.errors import Error, UnsupportedError
from rlx.frontends.torch.autocast import Region
from rlx.frontends.torch.dtypes import tensor_of
from rlx.frontends.torch.model import TorchModel, imported_program
from rlx.frontends.torch.namespaces import pytree, torch

LOG = logging.getLogger("rlx")


def is_module(value: Any) -> bool:
    """Is it a module of torch's? Torch is not imported to find out."""
    import sys

    return "torch" in sys.modules and isinstance(value, torch.nn.Module)


def is_exported(value: Any) -> bool:
    """Is it an ExportedProgram?"""
    return type(value).__name__ == "ExportedProgram" and hasattr(value, "graph_signature")


def exported_model(
    module: Any, args: Sequence[Any], kwargs: Mapping[str, Any] | None = None,
    dynamic_shapes: Any = None,
) -> TorchModel:  # fmt: skip
    """The model of a module or function, traced with these arguments."""
    program = exported(module, args, kwargs, dynamic_shapes)
    name = type(module).__name__ if is_module(module) else getattr(module, "__name__", "model")
    names, ambient = _dim_names(program, dynamic_shapes), Region.ambient()

    def retrace(flat: Sequence[Any]) -> TorchModel:
        tensors = [tensor_of(v) if isinstance(v, np.ndarray) else v for v in flat]
        given = pytree.tree_unflatten(tensors, program.call_spec.in_spec)
        with torch.inference_mode(False), ambient.context():
            return imported_program(exported(module, *given), name, {}, ambient)

    again = retrace if _is_left_to_torch(dynamic_shapes) else None
    return imported_program(program, name, names, ambient, retrace=again)


def _is_left_to_torch(dynamic_shapes: Any) -> bool:
    """Are sizes open for which the user states no range?"""
    dims = [d for spec in _tensor_specs(dynamic_shapes) for d in spec.values()]
    dim = torch.export.Dim
    return any(isinstance(d, type(dim.AUTO)) for d in dims) and not any(
        isinstance(d, dim) for d in dims
    )


def exported(
    module: Any, args: Sequence[Any], kwargs: Mapping[str, Any] | None = None,
    dynamic_shapes: Any = None,
) -> Any:  # fmt: skip
    """torch.export; sizes that it cannot keep open as asked for are left to it, and reported."""
    held = module if is_module(module) else _as_module(module)
    try:
        return _exported(held, args, kwargs, dynamic_shapes)
    except Exception as error:
        if dynamic_shapes is None or not _is_about_sizes(error):
            raise _failed(held, error) from None
        LOG.warning(
            "%s: torch cannot keep the sizes open that were asked for, and chooses itself: %s",
            type(held).__name__, str(error).strip().partition("\n")[0],
        )  # fmt: skip
    try:
        return _exported(held, args, kwargs, _automatic(dynamic_shapes))
    except Exception as error:
        raise _failed(held, error) from None


def _exported(module: Any, args: Sequence[Any], kwargs: Any, dynamic_shapes: Any) -> Any:
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        given = dict(kwargs) if kwargs else None
        return torch.export.export(module, tuple(args), given, dynamic_shapes=dynamic_shapes)


def _as_module(function: Any) -> Any:
    if not callable(function):
        raise Error(f"rlx compiles modules and functions of torch, got {type(function).__name__}.")

    class Function(torch.nn.Module):
        def forward(self, *args: Any, **kwargs: Any) -> Any:
            return function(*args, **kwargs)

    return Function()


def _is_about_sizes(error: Exception) -> bool:
    text = str(error)
    return any(w in text for w in ("Constraints violated", "constraint", "Dim", "specializ"))


def _failed(module: Any, error: Exception) -> Error:
    text = str(error).strip().partition("\n\n")[0][:600]
    return UnsupportedError(f"torch.export cannot trace {type(module).__name__}: {text}")


def _automatic(dynamic_shapes: Any) -> Any:
    """The same sizes, each as torch finds it."""
    dim = torch.export.Dim

    def loosened(value: Any) -> Any:
        return dim.AUTO if isinstance(value, dim | type(dim.AUTO)) else value

    return pytree.tree_map(loosened, dynamic_shapes)


def _dim_names(program: Any, dynamic_shapes: Any) -> dict[str, str]:
    """Torch's symbol → the name that the user gave the dim, where an input still has it."""
    found: dict[str, str] = {}
    fakes = [n.meta.get("val") for n in program.graph.nodes if n.op == "placeholder"]
    for spec in _tensor_specs(dynamic_shapes):
        for axis, dim in spec.items():
            name = getattr(dim, "__name__", None)
            if isinstance(name, str) and name.isidentifier():
                _name_axis(found, fakes, axis, name, getattr(dim, "max", None))
    return found


def _tensor_specs(value: Any) -> list[dict[int, Any]]:
    if isinstance(value, dict):
        if value and all(isinstance(k, int) for k in value):
            return [value]
        return [s for v in value.values() for s in _tensor_specs(v)]
    if isinstance(value, list | tuple):
        if value and not any(isinstance(v, dict | list | tuple) for v in value):
            return [{i: d for i, d in enumerate(value) if d is not None}]
        return [s for v in value for s in _tensor_specs(v)]
    return []


def _name_axis(found: dict[str, str], fakes: Any, axis: int, name: str, most: Any) -> None:
    """Only one input's axis with one symbol can be meant, where no other dim has it."""
    del most
    symbols = {
        str(f.shape[axis].node.expr)
        for f in fakes
        if isinstance(f, torch.Tensor)
        and f.dim() > axis
        and isinstance(f.shape[axis], torch.SymInt)
        and f.shape[axis].node.expr.is_Symbol
    }
    if len(symbols) == 1 and name not in found.values():
        found.setdefault(symbols.pop(), name)
