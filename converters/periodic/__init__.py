"""Periodic boundaries: ``--pbc`` and ``--center``."""

NEED_BONDS = ("whole", "mol", "cluster", "unwrap")
"""Those ways that a topology has to have bonds for."""
