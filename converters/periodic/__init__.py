"""Periodic boundaries: ``--pbc`` and ``--center``."""

PBC_CHOICES = ("whole", "mol", "cluster", "atom", "nojump", "wrap", "unwrap")
"""``whole`` (``unwrap``): molecules made whole; ``mol``: and put into the cell by their centres;
``cluster``: and brought together; ``atom`` (``wrap``): each atom into the cell; ``nojump``: atoms
go on where they leave it."""
NEED_BONDS = ("whole", "mol", "cluster", "unwrap")
"""Those that a topology has to have bonds for."""
