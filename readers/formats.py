"""Names under which MDAnalysis knows our readers and topologies, and which paths each claims.

Names of other readers (H5MD, H5, ZARRMD, ...) stay theirs; a hint claims only what mdio wrote, and
what is called so and nobody else reads: MDAnalysis would answer with a list of all formats.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from MDAnalysis import _READER_HINTS, _READERS
from MDAnalysis.core.topology import Topology
from MDAnalysis.topology.base import TopologyReaderBase

from mdio.core.errors import SourceError
from mdio.core.files.remote.paths import is_remote, path_of
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
        return any(reader._format_hint(thing) for reader in (ZarrReader, H5MDReader))

    def parse(self, group: str | None = None, **_: Any) -> Topology:
        """Return the topology of all atoms, or of those of a stored group."""
        options = {} if group is None else {"group": group}
        with open_layout(self.filename, **options) as layout:
            found = layout.topology()
            if found is None:
                return Topology(layout.info.n_atoms)
            return made_for_mdanalysis(found)


def _is(thing: Any, written: Callable[[Path], bool], *, folder: bool) -> bool:
    """Return whether mdio has written what is at a path, a folder or a file."""
    if not isinstance(thing, str | Path):
        return False
    path = path_of(thing)
    try:
        return (path.is_dir() if folder else path.is_file()) and written(path)
    except OSError as error:  # of a store
        raise SourceError(f"{path}: cannot be opened ({error.strerror}); check the URL") from error


def _nobody_elses(thing: Any, suffix: str) -> bool:
    """Return whether a path is called so, and no reader besides ours is for it."""
    if not isinstance(thing, str | Path) or is_remote(thing) or Path(thing).suffix != suffix:
        return False
    others = (hint for name, hint in _READER_HINTS.items() if not name.startswith("MDIO"))
    return suffix[1:].upper() not in _READERS and not any(hint(thing) for hint in others)


class SegmentsReader(LayoutReader):
    """Reads ``NAME.segments/``."""

    format = "MDIOSEG"

    @staticmethod
    def _format_hint(thing: Any) -> bool:
        ours = _is(thing, segments.written_by_mdio, folder=True)
        return ours or (_nobody_elses(thing, ".segments") and not Path(thing).exists())


class H5MDReader(LayoutReader):
    """Reads H5MD files that mdio has written."""

    format = "MDIOH5"

    @staticmethod
    def _format_hint(thing: Any) -> bool:
        return _is(thing, h5md.written_by_mdio, folder=False)


class ZarrReader(LayoutReader):
    """Reads Zarr trees that mdio has written."""

    format = "MDIOZ"

    @staticmethod
    def _format_hint(thing: Any) -> bool:
        ours = _is(thing, zarr_layout.written_by_mdio, folder=True)
        return ours or _nobody_elses(thing, ".zarr")
