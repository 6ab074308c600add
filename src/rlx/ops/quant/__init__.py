"""Quantised operands: linear, block-scaled, and GGUF."""
