"""WebAssembly: the linker of its object files, and programs that a page runs."""
