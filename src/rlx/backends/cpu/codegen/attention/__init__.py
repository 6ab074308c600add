"""Attention with an online softmax."""
