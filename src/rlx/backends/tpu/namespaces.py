"""Modules of jax, which are imported when they are first used."""

from __future__ import annotations

from rlx.backends.engine.lazy import lazy

jax = lazy("jax")
jnp = lazy("jax.numpy")
lax = lazy("jax.lax")
export = lazy("jax.export")
serialize_executable = lazy("jax.experimental.serialize_executable")
topologies = lazy("jax.experimental.topologies")
