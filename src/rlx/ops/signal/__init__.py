"""Fourier transforms, framing, spectra, filters, windows and mel scales."""
