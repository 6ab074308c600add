"""TPUs, and all that XLA compiles for, by jax: the steps of a plan as calls on its arrays."""
