"""What is too fine-grained for PyTorch's operations, as machine code that Numba makes of Python.

Kernels are compiled when they are first called, and kept on the disk for the next process.
"""
