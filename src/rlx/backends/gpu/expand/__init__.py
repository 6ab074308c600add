"""Functions that a target lacks, in terms of arithmetic that it has. Each keeps the bits."""
