"""Names under which MDAnalysis knows our readers and topologies, and which paths each claims.

Names of other readers (H5MD, H5, ZARRMD, ...) stay theirs; a hint claims only what mdio wrote.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from MDAnalysis.core.topology import Topology
from MDAnalysis.topology.base import TopologyReaderBase

from mdio.core.files.remote.paths import path_of
from mdio.layouts.foreign.universe import made_for_mdanalysis
from mdio.layouts.h5md import layout as h5md
from mdio.layouts.registry import open_layout
from mdio.layouts.segments import manifest as segments
from mdio.layouts.zarr import layout as zarr_layout
from mdio.readers.reader import LayoutReader


class StoredTopologyParser(TopologyReaderBase):  # type: ignore[misc]
    """Reads what an output of mdio holds of its atoms; of one that holds nothing, their number."""

    format = "MDIOTOP"

    @staticmethod
    def _format_hint(thing: Any) -> bool:
        if not isinstance(thing, str | Path):
            return False
        path = path_of(thing)
        if path.is_dir():
            return zarr_layout.written_by_mdio(path)
        return path.is_file() and h5md.written_by_mdio(path)

    def parse(self, group: str | None = None, **_: Any) -> Topology:
        """Return the topology of all atoms, or of those of a stored group."""
        options = {} if group is None else {"group": group}
        with open_layout(self.filename, **options) as layout:
            found = layout.topology()
            if found is None:
                return Topology(layout.info.n_atoms)
            return made_for_mdanalysis(found)


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
