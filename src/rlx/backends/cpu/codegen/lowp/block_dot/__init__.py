"""Block dot products: weights as packed bytes, activations quantised to int8, exact sums."""
