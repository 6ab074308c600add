"""Handlers of ATen ops: math."""
