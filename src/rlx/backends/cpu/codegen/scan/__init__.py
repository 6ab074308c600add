"""Scans: cumulative ops, recurrent layers, state-space layers."""
