"""PTX text of SIMT programs."""
