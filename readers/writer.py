"""The MDAnalysis plugin: outputs of mdio, written as other trajectories are.

``MDAnalysis.Writer("md.zarr", n_atoms)`` and ``atoms.write("md.segments", frames="all")`` know the
suffixes that no other writer has; ``format="MDIO"`` writes whatever the suffix says.
"""

from __future__ import annotations

from os import PathLike
from typing import Any

from MDAnalysis import _MULTIFRAME_WRITERS, _SINGLEFRAME_WRITERS
from MDAnalysis.coordinates.base import WriterBase

SUFFIXES = ("ZARR", "SEGMENTS")


class TrajectoryWriter(WriterBase):  # type: ignore[misc]
    """Writes any layout from MDAnalysis.

    Parameters
    ----------
    filename
        Output; its suffix names the layout.
    n_atoms
        Number of atoms of each frame.
    **options
        Those of `mdio.Writer`.

    Raises
    ------
    TypeError
        What is written is neither an AtomGroup nor a Universe.
    ValueError
        It has another number of atoms.
    OutputError, PlanError
        See `mdio.Writer`.
    """

    format = "MDIO"
    multiframe = True
    units = {"time": "ps", "length": "Angstrom"}  # noqa: RUF012 - as MDAnalysis reads it

    def __init__(self, filename: str | PathLike[str], n_atoms: int, **options: Any) -> None:
        from mdio.converters.writer import Writer

        self.filename, self.n_atoms = filename, n_atoms
        self._writer: Writer = Writer(filename, n_atoms, **options)

    def _write_next_frame(self, atoms: Any) -> None:
        self._writer.write(atoms)

    def close(self) -> None:
        """Store what was written, and make the output."""
        if "_writer" in self.__dict__:  # it was not refused
            self._writer.close()


for _suffix in SUFFIXES:
    _MULTIFRAME_WRITERS.setdefault(_suffix, TrajectoryWriter)
    _SINGLEFRAME_WRITERS.setdefault(_suffix, TrajectoryWriter)
