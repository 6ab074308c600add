"""Fast Fourier transforms, and spectra of frames."""
