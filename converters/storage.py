"""What the storage under an output means for how it is written."""

from __future__ import annotations

from pathlib import Path

from mdio.layouts.striping.networks import is_network
from mdio.layouts.striping.stripes import file_system_type

__all__ = ["telling_file_system"]


def telling_file_system(target: Path, compression: str | None) -> str | None:
    """Return the type of the file system that is to say how floats are stored, if any is."""
    if compression not in (None, "auto"):
        return None
    found = file_system_type(target)
    return found if compression == "auto" or is_network(found) else None
