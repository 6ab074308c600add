"""Decision-tree ensembles."""
