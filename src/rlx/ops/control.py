"""The control page."""
