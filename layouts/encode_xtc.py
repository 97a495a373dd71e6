"""Bytes of GROMACS XTC frames: the codec's, with boxes and precision as MDAnalysis writes them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mdio.core import xtc_codec
from mdio.core.boxes import vectors_from_boxes
from mdio.core.frames import FrameBlock
from mdio.layouts.encode import Bytes, Encoder

__all__ = ["XTCEncoder"]

DEFAULT_STEP = 0.01


@dataclass(frozen=True)
class XTCEncoder(Encoder):
    """XTC: positions rounded to `precision` (angstrom), box, time in single precision, step."""

    @property
    def frame_nbytes(self) -> None:
        """Frames are compressed, each to its own size."""
        return

    def frames(self, block: FrameBlock, out: Bytes | None = None) -> Bytes:  # noqa: ARG002
        """Return the bytes of all frames; see the base class."""
        box = block.box.copy()
        box[:, :3] *= np.float32(0.1)
        data = xtc_codec.encode(
            block.positions,
            vectors_from_boxes(box),
            block.time,
            block.step,
            10.0 / (self.precision or DEFAULT_STEP),
        )
        return np.frombuffer(data, np.uint8)
