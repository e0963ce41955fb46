"""Kernels: what compiled code does with the elements and channels of a task."""
