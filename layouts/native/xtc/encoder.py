"""Bytes of GROMACS XTC frames: the codec's, with boxes and precision as MDAnalysis writes them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mdio.core.boxes import vectors_from_boxes
from mdio.core.frames import FrameBlock
from mdio.core.xtc import codec as xtc_codec
from mdio.core.xtc.codec import HEADER_NBYTES, parse_header
from mdio.layouts.native.encoder import Bytes, Encoder

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

    def offsets(self, data: Bytes) -> NDArray[np.int64]:
        """Return where each frame of `data` begins, and where the last one ends."""
        view, edges = data.data, [0]
        while edges[-1] < len(view):
            at = edges[-1]
            header = parse_header(view[at : at + HEADER_NBYTES].tobytes(), len(edges) - 1, at)
            edges.append(at + header.nbytes)
        return np.array(edges, np.int64)
