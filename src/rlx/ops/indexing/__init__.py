"""Movement: views, concatenation, gather, scatter, and results whose size depends on data."""
