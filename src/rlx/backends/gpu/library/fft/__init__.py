"""Fourier transforms in registers and shared memory, and the spectra that are made of them."""
