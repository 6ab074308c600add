"""Nodes that a target lacks, in terms of nodes that it has. Each expansion keeps the bits."""
