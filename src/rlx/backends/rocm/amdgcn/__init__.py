"""LLVM IR of SIMT programs for AMD GPUs, and its assembly to code objects."""
