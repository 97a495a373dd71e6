"""Kernels: what is computed for each frame."""
