"""On-the-fly transformations of MDAnalysis as a layout: ``--pbc`` and ``--center``.

Only transformations of one frame alone are offered: a worker sees its own frames and no others, so
that anything that follows a molecule through time (``nojump``) would depend on how work is divided.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from mdio.core.errors import PlanError
from mdio.core.frames import FrameBlock, TrajectoryInfo
from mdio.layouts.base import AtomIndices, Layout

__all__ = ["PBC_CHOICES", "TransformedLayout"]

PBC_CHOICES = ("wrap", "unwrap")
"""``wrap``: each atom into the cell; ``unwrap``: molecules made whole (needs bonds)."""


class TransformedLayout(Layout):
    """A source whose frames go through MDAnalysis transformations as they are read.

    The transformations are applied to whole frames, in this order: unwrap, center, wrap. Then the
    wanted atoms are taken.

    Parameters
    ----------
    path
        Path of the source, for messages.
    source
        The layout to read from.
    top
        Topology file.
    pbc
        One of `PBC_CHOICES`, or None.
    center
        Selection whose centre of geometry goes to the centre of the box, or None.
    """

    name = "transformed"
    known_options = frozenset({"source", "top", "pbc", "center"})

    def __init__(
        self,
        path: str | PathLike[str],
        *,
        source: Layout,
        top: str,
        pbc: str | None = None,
        center: str | None = None,
        **options: Any,
    ) -> None:
        super().__init__(path, source=source, top=top, pbc=pbc, center=center, **options)
        if pbc is not None and pbc not in PBC_CHOICES:
            raise PlanError(f"--pbc {pbc!r} is unknown; choose from {', '.join(PBC_CHOICES)}")
        self.source = source
        self._universe: Any = None

    @classmethod
    def sniff(cls, path: Path) -> bool:  # noqa: ARG003
        """No bytes on disk are a transformation."""
        return False

    def _open(self) -> TrajectoryInfo:
        # What comes out is no longer the integers of an XTC source.
        return self.source.info.replace(
            precision=None, xtc_integers=False, compression=None, groups={}
        )

    def _close(self) -> None:
        self.source.close()

    def files(self) -> Iterator[Layout]:
        """Yield itself: its frames are not those of a file."""
        yield self

    def _atoms(self) -> Any:
        """Return the AtomGroup of all atoms, its universe with the transformations added."""
        if self._universe is None:
            from MDAnalysis import transformations as trans

            from mdio.converters.selection import load_topology

            universe = load_topology(self.options["top"], self.source)
            pbc, center = self.options["pbc"], self.options["center"]
            steps = []
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                try:
                    if pbc == "unwrap":
                        universe.atoms.fragments  # noqa: B018 - raises where there are no bonds
                        steps.append(trans.unwrap(universe.atoms))
                    if center is not None:
                        steps.append(trans.center_in_box(universe.select_atoms(center)))
                    if pbc == "wrap":
                        steps.append(trans.wrap(universe.atoms))
                except Exception as error:  # MDAnalysis raises many kinds; all mean the same here
                    raise PlanError(
                        f"--pbc {pbc} --center {center}: cannot be set up with the topology "
                        f"{self.options['top']} ({error}); unwrap needs bonds"
                    ) from error
            self._steps = steps
            self._universe = universe
        return self._universe.atoms

    def _read_into(
        self, start: int, stop: int, atoms: AtomIndices | None, block: FrameBlock
    ) -> None:
        if atoms is not None and atoms.size == 0:
            self.source.read(start, stop, atoms=atoms, out=block)
            return
        whole = block if atoms is None else None
        whole = self.source.read(start, stop, out=whole)
        everyone = self._atoms()
        ts = everyone.universe.trajectory.ts
        for row in range(stop - start):
            ts.positions = whole.positions[row]
            ts.dimensions = whole.box[row] if whole.box[row].any() else None
            try:
                for step in self._steps:
                    step(ts)
            except ValueError as error:
                raise PlanError(
                    f"{self.path}: frame {start + row}: --pbc/--center failed ({error}); "
                    "they need a unit cell in every frame"
                ) from error
            whole.positions[row] = ts.positions
        if atoms is not None:
            block.assign(whole.take(np.asarray(atoms)))
