"""Factorisations of dense matrices: one unit of work is one matrix of a stack.

A matrix is copied into the worker's scratch memory, contiguous, real and imaginary parts as two
planes, and factorised there. Workers share nothing, so results do not depend on their number.
"""
