"""Contractions without matrix instructions: few rows, or tiles in registers."""
