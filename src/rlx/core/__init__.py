"""Base layer: dims, dtypes, shapes, signatures, attributes, errors and files; knows no ops."""
