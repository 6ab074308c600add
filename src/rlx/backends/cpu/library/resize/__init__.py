"""Image resize."""
