"""The CPU: native code made by LLVM, for the instruction set of this machine or another.

Loading code that was made before needs no LLVM.
"""
