"""Work too fine-grained for PyTorch's operations, as machine code that Numba compiles from Python.

Kernels are compiled on their first call and cached on disk for the next process.
"""
