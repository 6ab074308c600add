"""Kernels lowered to SIMT programs."""
