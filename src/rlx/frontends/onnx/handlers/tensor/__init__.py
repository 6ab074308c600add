"""Arithmetic, shapes, indexing, reductions, signal processing."""
