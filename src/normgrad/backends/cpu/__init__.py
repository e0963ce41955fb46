"""The CPU backend: Numba kernels, compiled on first use and kept on disk."""
