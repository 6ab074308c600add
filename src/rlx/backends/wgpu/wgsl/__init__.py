"""SIMT programs as WGSL."""
