"""The fused page."""
