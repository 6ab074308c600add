"""Arithmetic, activations, special functions, reductions, products, sorting, random numbers."""
