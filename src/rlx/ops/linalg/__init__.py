"""Dense linear algebra and factorizations."""
