"""LLVM code for the kernel forms: loops, GEMM, convolution, attention, scans, low precision."""
