"""The movement page."""
