"""The pages of the op table: the modules that declare ops, in the order of the table."""

from __future__ import annotations

import functools
import importlib
import pkgutil

ORDER = (
    "leaves",
    "math.elementwise",
    "math.logic",
    "math.activation",
    "math.special_functions",
    "math.bessel",
    "math.probability",
    "math.zeta",
    "math.recurrences",
    "math.floating_point",
    "indexing.movement",
    "indexing.concat_and_split",
    "indexing.gather",
    "indexing.scatter",
    "math.reduction",
    "math.sort_and_scan",
    "indexing.data_dependent",
    "math.contraction",
    "nn.normalization",
    "nn.adaptive_norm",
    "nn.attention",
    "nn.convolution",
    "nn.im2col",
    "nn.pooling",
    "nn.resize",
    "nn.grid_sample",
    "nn.roi",
    "signal.fft",
    "nn.recurrent",
    "nn.state_space",
    "signal.windows_and_mel",
    "signal.nd_transforms",
    "signal.framing",
    "signal.power_spectra",
    "signal.filters",
    "math.random",
    "nn.sampling",
    "control",
    "nn.losses",
    "fused",
    "nn.mixture_of_experts",
    "quant.block_scaled",
    "quant.gguf",
    "quant.linear",
    "linalg.factorization",
    "linalg.dense",
    "linalg.lu",
    "linalg.ldl",
    "linalg.reflections",
    "linalg.eigen",
    "linalg.spd",
    "ml.trees",
)
"""Pages whose place in the table, and so in its documentation, is given."""


@functools.cache
def all_pages() -> tuple[str, ...]:
    """Those above, then whatever else lies in a family's folder, by name: a new page is a new
    file, and no list names it."""
    roots = importlib.import_module("rlx.ops").__path__
    families = [m.name for m in pkgutil.iter_modules(roots) if m.ispkg]
    found = {
        f"{family}.{page.name}"
        for family in families
        for page in pkgutil.iter_modules([f"{root}/{family}" for root in roots])
    }
    return (*ORDER, *sorted(found - set(ORDER)))
