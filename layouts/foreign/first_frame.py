"""The first frame of a layout as MDAnalysis' coordinates of a topology, read once it is wanted."""

from __future__ import annotations

from typing import Any

from MDAnalysis.coordinates.base import SingleFrameReaderBase
from MDAnalysis.coordinates.timestep import Timestep

from mdio.core.frames import FrameBlock
from mdio.layouts.base import Layout


class FirstFrame(SingleFrameReaderBase):  # type: ignore[misc]
    """Reads nothing before its coordinates are asked for: most selections are by name.

    One frame costs a whole chunk where that is compressed as one, and a request where it is in a
    store. The layout is left open or closed, as it was.
    """

    units = {"time": "ps", "length": "Angstrom"}  # noqa: RUF012 - as MDAnalysis reads it

    def __init__(self, layout: Layout, **kwargs: Any) -> None:
        self._layout = layout
        self._ts: Timestep | None = None
        n_atoms, dt_ps = layout.info.n_atoms, layout.info.dt_ps
        super().__init__(str(layout.path), n_atoms=n_atoms, dt=dt_ps, **kwargs)

    def _read_first_frame(self) -> None:
        """Forget the frame and what was made of it, so that it is read once it is wanted."""
        self._ts = None

    @property
    def ts(self) -> Timestep:
        """The frame; reads it at the first time."""
        if self._ts is None:
            was_open = self._layout._info is not None
            block = self._layout.read(0, 1, out=FrameBlock.empty(1, self.n_atoms))
            if not was_open:
                self._layout.close()
            self._ts = Timestep.from_coordinates(block.positions[0], reader=self, **self._ts_kwargs)
            self._ts.dimensions = block.box[0]
            self._ts.frame = 0
        return self._ts

    @ts.setter
    def ts(self, value: Timestep) -> None:
        self._ts = value

    def copy(self) -> FirstFrame:
        """Return another one, with what was made of the frame so far."""
        other = type(self)(self._layout)
        if self._ts is not None:
            other.ts = self._ts.copy()
        other.transformations = self.transformations
        return other
