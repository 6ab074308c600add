"""PyTorch: modules and exported programs in, programs on tensors out.

exe = rlx.torch.compile(module, (x,))     # torch.export, then rlx
y = exe(x)                                # tensors in, tensors out

@rlx.torch.handler("my::op")              # an op of one's own
def my_op(call, x, scale=1.0): return rlx.ops.mul(x, scale)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rlx.core.public_calls import public
from rlx.frontends.torch.export import exported_model
from rlx.frontends.torch.handlers import handler
from rlx.frontends.torch.host_ops import host_op
from rlx.frontends.torch.model import TorchModel, from_exported
from rlx.frontends.torch.node_call import Call
from rlx.frontends.torch.program import TorchProgram
from rlx.runtime.session import Session

__all__ = ["Call", "TorchModel", "TorchProgram", "compile", "from_exported", "handler", "host_op"]


@public
def compile(
    module: Any,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    dynamic_shapes: Any = None,
    target: Any = None,
    **options: Any,
) -> TorchProgram:
    """Export a module with these arguments and compile it: what `rlx.compile` does with one. The
    options are those of `rlx.compile`."""
    of_session = {k: options.pop(k) for k in list(options) if k in _OF_SESSION}
    model = exported_model(module, args, kwargs, dynamic_shapes)
    return Session(target, **of_session).compile(model, **options)


_OF_SESSION = ("like", "threads", "device", "cache", "dump", "tune", "mesh", "donate")
