"""What GPU targets share: thread-level (SIMT) programs, and the lowering of kernels to them."""
