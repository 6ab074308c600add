"""If, Loop, Scan, sequences and optionals."""
