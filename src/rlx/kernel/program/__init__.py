"""Kernel programs: the kernels of every step of a plan as data, what makes them, what they mean."""
