"""The CPU backend: loop kernels as native code, through LLVM."""
