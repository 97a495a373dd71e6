"""The first frame of a layout as coordinates of an MDAnalysis Universe, read when first used."""

from __future__ import annotations

from typing import Any

from MDAnalysis.coordinates.base import SingleFrameReaderBase
from MDAnalysis.coordinates.timestep import Timestep

from mdio.core.frames import FrameBlock
from mdio.layouts.base import Layout


class FirstFrame(SingleFrameReaderBase):  # type: ignore[misc]
    """Reads the frame when its coordinates are first used: most selections are by name.

    Reading it may take decoding a complete chunk, or a request to a store. It opens the layout if
    necessary, and then closes it again.
    """

    units = {"time": "ps", "length": "Angstrom"}  # noqa: RUF012 - as MDAnalysis reads it

    def __init__(self, layout: Layout, **kwargs: Any) -> None:
        self._layout = layout
        self._ts: Timestep | None = None
        n_atoms, dt_ps = layout.info.n_atoms, layout.info.dt_ps
        super().__init__(str(layout.path), n_atoms=n_atoms, dt=dt_ps, **kwargs)

    def _read_first_frame(self) -> None:
        """Drop the frame and its changes, so that it is read again when it is next used."""
        self._ts = None

    @property
    def ts(self) -> Timestep:
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
        """Return a copy, with the changes that were made to the frame."""
        copy = type(self)(self._layout)
        if self._ts is not None:
            copy.ts = self._ts.copy()
        copy.transformations = self.transformations
        return copy
