"""GEMM: register tiles, packing, epilogues."""
