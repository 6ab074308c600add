"""Contractions and convolutions on matrix instructions."""
