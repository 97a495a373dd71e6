"""Kernels: computations for each frame."""
