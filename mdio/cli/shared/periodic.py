"""Options for periodic boundaries."""

from __future__ import annotations

from typing import Any

from mdio.converters.transform import PBC_CHOICES

__all__ = ["add_periodic"]


def add_periodic(group: Any) -> None:
    """Add ``--pbc`` and ``--center`` to a group of options."""
    group.add_argument(
        "--pbc",
        choices=PBC_CHOICES,
        help="whole: molecules that the box cuts are made whole (needs bonds); mol: and put into "
        "the box by their centres; atom: each atom into the box; nojump: atoms go on where they "
        "leave the box (unwrap and wrap are whole and atom)",
    )
    group.add_argument(
        "--center",
        metavar="SEL",
        help="move these atoms to the middle of the box, then the others around them as --pbc says "
        "(whole is then mol)",
    )
