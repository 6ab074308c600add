"""From nodes and regions to kernels: loops, contractions, convolutions."""
