"""Can TRR frames be read whose bytes are copied?"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from mdio.core.errors import SourceError
from mdio.layouts.frame_bytes import FrameBytes
from mdio.layouts.native.trr.header import FIXED_NBYTES, parse_header

__all__ = ["check_frames"]


def check_frames(data: NDArray[np.uint8], run: range, frames: FrameBytes, n_atoms: int) -> None:
    """Compare the lengths that frames give with those that they have.

    Raises SourceError: a frame is damaged; the message names it.
    """
    edges = frames.edges[run.start : run.stop + 1].tolist()
    known: tuple[bytes, int] | None = None
    for number, (begin, end) in enumerate(pairwise(edges), frames.first + run.start):
        raw = data[begin - edges[0] : begin - edges[0] + FIXED_NBYTES].tobytes()
        if known == (raw, end - begin):
            continue
        header = parse_header(raw, frames.path, number)
        if (header.n_atoms, header.frame_nbytes) != (n_atoms, end - begin):
            raise SourceError(
                f"{frames.path}: frame {number} has {header.n_atoms} atoms in "
                f"{header.frame_nbytes} bytes, expected {n_atoms} in {end - begin}: the file has "
                "changed while it was read, or is damaged"
            )
        known = raw, end - begin
