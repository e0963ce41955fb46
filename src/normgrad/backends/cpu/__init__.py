"""The CPU backend: kernels that Numba compiles once, or that a wheel brings."""
