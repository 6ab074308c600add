"""Attention as SIMT programs: tiles of keys, and the softmax of each row online."""
