"""Fusion: named patterns, regions, and what each is to the I/O cost gate."""
