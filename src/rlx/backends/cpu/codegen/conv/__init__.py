"""Convolution as implicit GEMM over NHWC."""
