"""Molecular-dynamics trajectories: how they lie on disk and get read in parallel."""

from mdio._version import __version__

__all__ = ["__version__"]
