"""Handlers of ATen ops: tensor."""
