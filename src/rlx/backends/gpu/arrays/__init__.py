"""Arrays on devices: read from other libraries and given to them without a copy."""
