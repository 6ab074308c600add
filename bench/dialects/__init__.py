"""The words that workloads are written in, one module of the same functions per library."""
