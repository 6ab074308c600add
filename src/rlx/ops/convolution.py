"""The convolution page."""
