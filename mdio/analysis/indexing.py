"""Finding the frames of files on all ranks together, before the first analysis of them."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import Any

from mdio.core.errors import MdioError
from mdio.core.files.index import FrameIndex, load_index, store_index
from mdio.core.xtc.codec import read_header
from mdio.core.xtc.in_parts import comes_over_a_network, joined, scan_part
from mdio.layouts.base import Layout
from mdio.layouts.native.xtc.layout import XTCLayout

__all__ = ["index_together"]


class _NotStoredError(Exception):
    """There is no index of a file yet."""


def _not_stored(path: Path) -> FrameIndex:
    raise _NotStoredError(path)


def index_together(trajectory: Any, comm: Any) -> None:
    """Find and store where frames begin in XTC files that have no index yet (collective).

    Each rank reads the part of a file that it is about to analyse. What cannot be done in this way
    is left to the opening of the file, with all that there may be to say about it.

    Parameters
    ----------
    trajectory
        A path, several, or an open layout, which is left alone; the same on all ranks.
    comm
        An mpi4py intracommunicator.
    """
    if isinstance(trajectory, Layout):
        return
    one = isinstance(trajectory, str | PathLike)
    paths = [trajectory] if one else list(trajectory)
    for path, n_atoms in comm.bcast(_without_index(paths) if comm.rank == 0 else None):
        try:
            part = scan_part(path, n_atoms, comm.rank, comm.size)
        except MdioError:
            part = None
        parts = comm.gather(part)
        if comm.rank == 0:
            index = joined(parts, n_atoms, path.stat().st_size)
            if index is not None:
                store_index(path, index)


def _without_index(paths: Sequence[str | PathLike[str]]) -> list[tuple[Path, int]]:
    """Return those of the files for which it pays, and how many atoms they have."""
    found = []
    for path in map(Path, paths):
        try:
            if XTCLayout.sniff(path) and comes_over_a_network(path):
                load_index(path, _not_stored)
        except _NotStoredError:
            found.append((path, read_header(path).n_atoms))
        except (OSError, ValueError):
            continue  # opening it will say what is wrong
    return found
