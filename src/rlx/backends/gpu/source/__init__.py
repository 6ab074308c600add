"""SIMT programs as structured source: what WGSL and the Metal language have in common."""
