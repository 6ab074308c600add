"""Classical models: tree ensembles."""
