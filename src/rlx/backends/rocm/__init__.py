"""AMD GPUs: SIMT programs by way of LLVM's AMDGCN, loaded by HIP."""
