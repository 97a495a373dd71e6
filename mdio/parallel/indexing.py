"""Finding the frames of files on all ranks together, before the first analysis of them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from os import PathLike
from pathlib import Path
from typing import Any

from mdio.core.errors import MdioError
from mdio.core.files.index import FrameIndex, load_index, store_index
from mdio.layouts.base import Layout
from mdio.layouts.native.file import comes_over_a_network, joined, scan_part
from mdio.layouts.native.trr import TRRLayout
from mdio.layouts.native.xtc import XTCLayout
from mdio.parallel.sleeping import bcast


class _NotStoredError(Exception):
    """There is no index of a file yet."""


def _not_stored(path: Path) -> FrameIndex:
    raise _NotStoredError(path)


def index_together(trajectory: Any, comm: Any) -> None:
    """Find and store where frames begin in XTC and TRR files that have no index yet (collective).

    Each rank reads the part of a file that it is about to analyse. What cannot be done in this way
    is left to the opening of the file, with all that there may be to say about it.

    `trajectory`: a path, several, or an open layout, which is left alone; the same on all ranks.
    `comm`: an mpi4py intracommunicator.
    """
    if isinstance(trajectory, Layout):
        return
    one = isinstance(trajectory, str | PathLike)
    paths = [trajectory] if one else list(trajectory)
    for path, kind in bcast(comm, _without_index(paths) if comm.rank == 0 else None):
        part, n_atoms = None, 0
        with suppress(MdioError, OSError, ValueError):
            marks = kind.marks(path)
            n_atoms = marks.n_atoms
            part = scan_part(path, marks, comm.rank, comm.size)
        parts = comm.gather(part)
        if comm.rank == 0:
            index = joined(parts, n_atoms, path.stat().st_size)
            if index is not None:
                store_index(path, index)


def _without_index(
    paths: Sequence[str | PathLike[str]],
) -> list[tuple[Path, type[XTCLayout | TRRLayout]]]:
    """Return those of the files for which it pays, and what they are."""
    found: list[tuple[Path, type[XTCLayout | TRRLayout]]] = []
    for path in map(Path, paths):
        for kind in (XTCLayout, TRRLayout):
            try:
                if comes_over_a_network(path) and kind.sniff(path):
                    load_index(path, _not_stored)
            except _NotStoredError:
                found.append((path, kind))
            except (OSError, ValueError):
                continue  # opening it will say what is wrong
    return found
