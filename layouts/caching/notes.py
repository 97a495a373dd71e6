"""What the user should know of a cache before anything is read through it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from mdio.core.cache.folder import Cache
from mdio.layouts.striping.networks import is_network
from mdio.layouts.striping.stripes import file_system_type

__all__ = ["notes_on"]


def notes_on(cache: Cache, path: Path, works: bool) -> Iterator[str]:
    """Yield what is odd about keeping units of the trajectory `path` in `cache`.

    `works` is whether its layout says where its frames lie.
    """
    if not works:
        yield (
            f"{path}: no unit of it can be kept, since only MDAnalysis or a library knows where "
            "its frames lie; it is read from the source: convert it, and keep units of the output"
        )
    kind = file_system_type(cache.root)
    if is_network(kind):
        yield (
            f"{cache.root}: it lies on a file system of the network ({kind}), where a cache gains "
            "nothing and all nodes share it; give a folder on a disk of each node"
        )
