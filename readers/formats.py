"""Names under which MDAnalysis knows our readers, and which paths each claims by itself.

Names of other readers (H5MD, H5, ZARRMD, ...) stay theirs; a hint claims only what mdio wrote.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mdio.core.files.remote.paths import path_of
from mdio.layouts.h5md import layout as h5md
from mdio.layouts.segments import manifest as segments
from mdio.layouts.zarr import layout as zarr_layout
from mdio.readers.reader import LayoutReader

__all__ = ["H5MDReader", "SegmentsReader", "ZarrReader"]


def _path(thing: Any) -> Path | None:
    return path_of(thing) if isinstance(thing, str | Path) else None


class SegmentsReader(LayoutReader):
    """Reads ``NAME.segments/``."""

    format = "MDIOSEG"

    @staticmethod
    def _format_hint(thing: Any) -> bool:
        path = _path(thing)
        return path is not None and path.is_dir() and segments.written_by_mdio(path)


class H5MDReader(LayoutReader):
    """Reads H5MD files that mdio has written."""

    format = "MDIOH5"

    @staticmethod
    def _format_hint(thing: Any) -> bool:
        path = _path(thing)
        return path is not None and path.is_file() and h5md.written_by_mdio(path)


class ZarrReader(LayoutReader):
    """Reads Zarr trees that mdio has written."""

    format = "MDIOZ"

    @staticmethod
    def _format_hint(thing: Any) -> bool:
        path = _path(thing)
        return path is not None and path.is_dir() and zarr_layout.written_by_mdio(path)
