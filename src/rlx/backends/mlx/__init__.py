"""Apple silicon, and Linux, by MLX: the steps of a plan as calls on its arrays."""
