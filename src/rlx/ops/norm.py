"""The norm page."""
