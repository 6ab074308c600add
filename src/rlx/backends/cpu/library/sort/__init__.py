"""Sort, top-k and unique."""
