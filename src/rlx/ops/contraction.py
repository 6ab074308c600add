"""The contraction page."""
