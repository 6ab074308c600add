"""Loop nests with explicit vectors."""
