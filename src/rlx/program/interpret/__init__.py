"""SIMT programs on NumPy, all threads of some blocks at once, with race detection."""
