"""Sizes, dtypes, shapes, signatures, attributes, errors and files: what knows nothing of ops."""
