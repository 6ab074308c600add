"""SIMT programs as source of the Metal shading language."""
