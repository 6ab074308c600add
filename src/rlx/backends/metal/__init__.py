"""Apple's GPUs: MSL of SIMT programs, compiled and run by Metal."""
