"""Sorting, selection of the greatest, and groups of equal values."""
