"""What runs compiled code: code without LLVM, threads, and the way in from Python."""
