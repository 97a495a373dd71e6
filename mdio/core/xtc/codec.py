"""XTC: finding, decoding and encoding frames, with compiled functions.

Positions come out bit-identical to those of MDAnalysis' XTCReader: xdrfile multiplies each integer
by the float32 1/precision, MDAnalysis multiplies the product by the float32 10. Encoded bytes are
those that xdrfile writes for the same numbers.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from mdio.core.errors import OutputError, SourceError
from mdio.core.files.index import FrameIndex
from mdio.core.files.reading import OpenFile
from mdio.core.xtc import native as xtc_native
from mdio.core.xtc.frames import XTCFrames
from mdio.core.xtc.header import HEADER_NBYTES, XTCHeader, parse_header
from mdio.core.xtc.native import opened, source_errors

__all__ = ["XTCFrames", "encode", "read_header", "scan"]

CUT = re.compile(r"frame (\d+) at byte (\d+): .*the file ends after")
"""What `kernels.scan` says of a file that ends within a frame."""


def scan(path: Path) -> FrameIndex:
    """Find the frames of an XTC file by a walk over their headers; the last may be cut.

    Raises SourceError: it cannot be read, is empty, ends within its first frame, holds something
    else than frames, or its frames differ in their numbers of atoms; the message names frame and
    byte.
    """
    with opened(path) as fd:
        nbytes = os.fstat(fd).st_size
        if nbytes == 0:
            raise SourceError(f"{path}: the file is empty (0 bytes), so it holds no frames")
        end = nbytes
        try:
            offsets, n_atoms = xtc_native.kernels.scan(fd, nbytes)
        except ValueError as error:
            cut = CUT.match(str(error))
            if cut is None or cut[1] == "0":
                raise
            end = int(cut[2])
            offsets, n_atoms = xtc_native.kernels.scan(fd, end)
    return FrameIndex(offsets, end, n_atoms, nbytes - end)


def read_header(path: Path) -> XTCHeader:
    """Return the header of the first frame.

    Raises SourceError: the file cannot be read, is empty or does not begin with a frame.
    """
    with OpenFile(path) as file, source_errors(path):
        raw = file.peek(0, HEADER_NBYTES)
        if not raw:
            raise SourceError(f"{path}: the file is empty (0 bytes), so it holds no frames")
        return parse_header(raw, 0, 0)


def encode(
    positions: ArrayLike,
    vectors: ArrayLike,
    time: ArrayLike,
    step: ArrayLike,
    precision: float = 1000.0,
) -> bytes:
    """Return frames as XTC.

    `positions`, (F, A, 3) float32: coordinates, angstrom; multiplied by the float32 0.1, as
    MDAnalysis' XTCWriter does. `vectors`, (F, 3, 3) float32: box vectors, nm. `time`, (F,) float:
    ps; stored as float32. `step`, (F,) int: stored as 32-bit integers. `precision`: integer steps a
    nm; a step in angstrom is 10 / precision.
    Returns bytes: what xdrfile writes for the same numbers.
    Raises OutputError: a coordinate or a step does not fit the 32-bit integers of the format.
    ValueError: arrays whose shapes do not fit together, or a precision that is not positive.
    """
    x = np.asarray(positions, np.float32) * np.float32(0.1)
    boxes = np.ascontiguousarray(vectors, np.float32)
    times = np.ascontiguousarray(time, np.float32)
    steps = np.asarray(step, np.int64)
    n_frames = len(x)
    if (x.shape[2:], boxes.shape, times.shape, steps.shape) != (
        (3,),
        (n_frames, 3, 3),
        (n_frames,),
        (n_frames,),
    ) or (n_frames and not x.shape[1]):
        raise ValueError(f"positions of {x.shape} do not go with boxes, times or steps given")
    precision = float(np.float32(precision))
    if not 0 < precision < np.inf:
        raise ValueError(f"precision is {precision}; it must be a positive number of steps a nm")
    if steps.size and not -(2**31) <= steps.min() <= steps.max() < 2**31:
        raise OutputError(f"steps up to {steps.max()} do not fit XTC's 32-bit step; write h5md")
    try:
        return bytes(xtc_native.kernels.encode(x, boxes, times, steps.astype(np.int32), precision))
    except ValueError as error:
        raise OutputError(
            f"XTC cannot hold these coordinates ({error}); "
            f"lower the precision of {precision:g} steps a nm, or write another layout"
        ) from error
