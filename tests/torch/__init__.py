"""Tests that need PyTorch: `make test-torch` installs it."""
