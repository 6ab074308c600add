"""The spectral page."""
