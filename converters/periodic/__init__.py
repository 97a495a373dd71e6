"""Periodic boundaries: ``--pbc`` and ``--center``."""
