"""Scans as SIMT programs."""
