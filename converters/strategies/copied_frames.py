"""Can the frames be read whose bytes are copied? Told from the bytes, without decoding them.

XTC frames are followed from the first to the last group of atoms, which is all that can go wrong in
them and much less than decoding; TRR and DCD frames have lengths that must be right. Any bytes are
good numbers in NetCDF.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mdio.converters.strategies.byte_frames import ByteFrames
from mdio.core.errors import SourceError
from mdio.core.xtc import native as xtc_native
from mdio.core.xtc.native import source_errors
from mdio.layouts.native.trr.header import FIXED_NBYTES, parse_header

__all__ = ["frame_check"]

Check = Callable[[NDArray[np.uint8], range], None]
"""Given a buffer and the frames whose bytes it begins with; raises SourceError."""


def frame_check(container: str, n_atoms: int, frames: ByteFrames) -> Check | None:
    """Return what checks the frames of a file of format `container`; None if nothing needs it."""
    if container == "xtc":
        return lambda data, run: _check_xtc(data, run, frames, n_atoms)
    if container == "trr":
        return lambda data, run: _check_trr(data, run, frames, n_atoms)
    if container == "dcd":
        return lambda data, run: _check_dcd(data, run, frames)
    return None


def _check_xtc(data: NDArray[np.uint8], run: range, frames: ByteFrames, n_atoms: int) -> None:
    n_frames = len(run)
    edges = frames.edges[run.start : run.stop + 1]
    last = np.array([n_atoms - 1])
    if not xtc_native.NATIVE:
        _check_with_mdanalysis(frames.path, run, frames, n_atoms)
        return
    with source_errors(frames.path):
        xtc_native.kernels.decode(
            data,
            frames.first + run.start,
            np.ascontiguousarray(edges),
            n_atoms,
            np.empty((n_frames, 1, 3), np.float32),
            np.empty((n_frames, 3, 3), np.float32),
            np.empty(n_frames, np.float64),
            np.empty(n_frames, np.int64),
            last,
            None,
            1,
        )


def _check_with_mdanalysis(path: Path, run: range, frames: ByteFrames, n_atoms: int) -> None:
    from mdio.core.xtc import fallback as xtc_fallback

    positions = np.empty((len(run), n_atoms, 3), np.float32)
    edges = frames.edges[run.start : run.stop + 1]
    with source_errors(path):
        xtc_fallback.read_positions(path, frames.first + run.start, edges, n_atoms, positions, None)


def _check_trr(data: NDArray[np.uint8], run: range, frames: ByteFrames, n_atoms: int) -> None:
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


def _check_dcd(data: NDArray[np.uint8], run: range, frames: ByteFrames) -> None:
    assert frames.markers is not None
    stride = int(frames.edges[1] - frames.edges[0])
    rows = data[: len(run) * stride].reshape(len(run), stride)
    for offset, marker in frames.markers:
        found = rows[:, offset : offset + len(marker)]
        wrong = (found != np.frombuffer(marker, np.uint8)).any(axis=1)
        if wrong.any():
            frame = frames.first + run.start + int(np.argmax(wrong))
            raise SourceError(
                f"{frames.path}: frame {frame} is damaged: the length of a record of it, at byte "
                f"{int(frames.edges[run.start + int(np.argmax(wrong))]) + offset}, is not what it "
                "should be; copy the file from where it came from again"
            )
