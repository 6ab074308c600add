"""String tensors and n-grams."""
