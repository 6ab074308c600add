"""The kernel level: what is computed, apart from how, and apart from any target."""
