"""Elementwise arithmetic and elementary functions on vectors."""
