"""The activation page."""
