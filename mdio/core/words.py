"""Words of messages."""

from __future__ import annotations

__all__ = ["plural"]


def plural(number: int, thing: str) -> str:
    """Return a number and what it counts: ``1 rank``, ``2,158 ranks``, ``3 passes``."""
    if number != 1:
        thing += "es" if thing.endswith(("s", "x", "ch", "sh")) else "s"
    return f"{number:,} {thing}"
