"""The rotary embedding of a config.json as GGUF's metadata, and tensors of divisors."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from rlx.core.errors import Error, UnsupportedError
from rlx.frontends.gguf.folder_config import FULL, MOST, SLIDING, Config
from rlx.frontends.tracked_fields import TrackedFields
from rlx.ops.op import Array

LOCAL_THETA = 1e4
TRAINED = "original_max_position_embeddings"


class FolderRotary:
    """How angles are scaled, by either of the names that configurations have for it."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._has_local = config.architecture == "gemma3"
        self._fields, self._path = self._global_fields()
        self._theta = self._number("rope_theta", config.raw("rope_theta", config.family.theta))
        named = str(self._fields.get("rope_type") or self._fields.get("type") or "default")
        synonyms = {"su": "longrope"} | ({"yarn": "longrope"} if config.kind == "phi3" else {})
        self._kind = synonyms.get(named, named)

    def metadata(self) -> dict[str, Any]:
        """GGUF's pairs."""
        config = self._config
        rotated = config.head_dim
        if config.family.has_partial_rotary:
            factor = self._number("partial_rotary_factor", config.raw("partial_rotary_factor", 1.0))
            rotated = int(config.head_dim * factor)
        found = {"rope.dimension_count": rotated, "rope.freq_base": self._theta, **self._scaling()}
        if self._has_local:
            found["rope.freq_base_swa"] = self._local_theta()
        return {f"{config.architecture}.{key}": value for key, value in found.items()}

    def tensors(self) -> dict[str, Array]:
        """Divisors of frequencies: Llama 3's, by formula, and those of longrope, as listed."""
        if self._kind == "llama3":
            return {"rope_freqs.weight": self._llama3().astype(np.float32)}
        if self._kind != "longrope":
            return {}
        return {f"rope_factors_{n}.weight": self._listed(f"{n}_factor") for n in ("long", "short")}

    def _global_fields(self) -> tuple[TrackedFields, str]:
        """The fields of layers that see all keys, and their name."""
        fields = self._config.fields
        key = "rope_scaling" if fields.get("rope_scaling") else "rope_parameters"
        found = fields.inner(key)
        if self._has_local and key == "rope_parameters":
            return found.inner(FULL), f"{key}.{FULL}."
        return found, f"{key}."

    def _local_theta(self) -> float:
        """The base of layers with a window, whose angles are not scaled."""
        config, key = self._config, "rope_parameters"
        local = config.fields.inner(key).inner(SLIDING)
        if (kind := local.get("rope_type") or local.get("type") or "default") != "default":
            raise UnsupportedError(
                f"{config.where}: {key}.{SLIDING}.rope_type is {kind!r:.60}. rlx reads default."
            )
        stated = local.get("rope_theta")
        stated = config.raw("rope_local_base_freq", LOCAL_THETA) if stated is None else stated
        return config.number(stated, "rope_local_base_freq")

    def _number(self, key: str, default: float | None = None) -> float:
        found = self._fields.get(key)
        return self._config.number(default if found is None else found, self._path + key)

    def _scaling(self) -> dict[str, Any]:
        match self._kind:
            case "default" | "llama3":  # llama3 is a tensor of factors
                return {}
            case "linear":
                return {
                    "rope.scaling.type": "linear", "rope.scaling.factor": self._number("factor"),
                }  # fmt: skip
            case "longrope":
                return self._long()
            case "yarn":
                return self._yarn()
            case _:
                raise UnsupportedError(
                    f"{self._config.where} scales rotary angles by {self._kind!r:.60}. rlx knows "
                    "default, linear, yarn, llama3 and longrope."
                )

    @property
    def _trained(self) -> int:
        """Tokens of the context before it was made longer."""
        config = self._config
        inside = self._fields.get(TRAINED)
        beside = config.raw(TRAINED, config.family.trained_context)
        if None not in (inside, beside) and inside != beside:
            raise Error(
                f"{config.where}: {self._path}{TRAINED} is {inside!r:.60}, and beside it "
                f"{beside!r:.60}. State one of them."
            )
        found = next((v for v in (inside, beside) if v is not None), config.context)
        if type(found) is not int or not 1 < found <= MOST:
            raise Error(f"{config.where}: {self._path}{TRAINED} is {found!r:.60}, not a count.")
        return found

    def _long(self) -> dict[str, Any]:
        """Two lists of divisors, and as much as more keys make scores' spread wider."""
        trained = self._trained
        scale = self._number("factor", self._config.context / trained)
        plain = math.sqrt(1 + math.log(scale) / math.log(trained)) if scale > 1 else 1.0
        return {
            "rope.scaling.type": "longrope",
            "rope.scaling.original_context_length": trained,
            "rope.scaling.attn_factor": self._number("attention_factor", plain),
        }

    def _yarn(self) -> dict[str, Any]:
        found: dict[str, Any] = {
            "rope.scaling.type": "yarn", "rope.scaling.original_context_length": self._trained,
        }  # fmt: skip
        fast, slow = self._number("beta_fast", 32.0), self._number("beta_slow", 1.0)
        if fast <= slow:
            raise Error(f"{self._config.where}: {self._path}beta_fast is not above beta_slow.")
        found |= {"rope.scaling.yarn_beta_fast": fast, "rope.scaling.yarn_beta_slow": slow}
        factor = self._number("factor")
        plain, magnitude = _yarn_magnitude(factor), self._yarn_magnitude(factor)
        if magnitude != plain:
            found["rope.scaling.attn_factor"] = magnitude / plain
        return {**found, "rope.scaling.factor": factor}

    def _yarn_magnitude(self, factor: float) -> float:
        """As stated; else 1 + 0.1·ln factor, or the quotient of two such with factors of the ln."""
        if self._fields.get("attention_factor") is not None:
            return self._number("attention_factor")
        scales = [self._fields.get(key) for key in ("mscale", "mscale_all_dim")]
        if not all(scales):
            return _yarn_magnitude(factor)
        above, below = (self._number(key) for key in ("mscale", "mscale_all_dim"))
        return _yarn_magnitude(factor, above) / _yarn_magnitude(factor, below)

    def _listed(self, key: str) -> Array:
        values = self._fields.get(key)
        if not isinstance(values, list) or not 0 < len(values) <= MOST:
            raise Error(f"{self._config.where}: {self._path}{key} is no list of numbers.")
        listed = [self._config.number(v, self._path + key) for v in values]
        return np.array(listed, np.float32)

    def _llama3(self) -> Array:
        """Frequencies of long waves are divided by `factor`, those of short waves stay, and between
        the two it is a ramp in waves of the trained context."""
        factor, low, high = (
            self._number(key) for key in ("factor", "low_freq_factor", "high_freq_factor")
        )
        if low >= high:
            raise Error(f"{self._config.where}: low_freq_factor is not below high_freq_factor.")
        pairs = np.arange(0, self._config.head_dim, 2) / self._config.head_dim
        waves = self._trained * self._theta**-pairs / (2 * math.pi)
        part = np.clip((waves - low) / (high - low), 0, 1)
        return 1 / (part + (1 - part) / factor)


def _yarn_magnitude(factor: float, scale: float = 1.0) -> float:
    return 1 + 0.1 * scale * math.log(factor) if factor > 1 else 1.0
