"""The attention page."""
