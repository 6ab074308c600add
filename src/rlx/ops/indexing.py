"""The indexing page."""
