"""The reduction page."""
