"""Low precision: zero points, GGUF and block-scaled weights, grouped products."""
