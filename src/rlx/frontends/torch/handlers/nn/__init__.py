"""Handlers of ATen ops: layers of networks."""
