"""XTC without the native module: MDAnalysis' libmdaxdr behind the native module's functions.

Slower, and with two limits: frames with a 64-bit byte count are refused, and the bits inside a
frame are trusted, since xdrfile does not check them (headers are checked here).
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mdio.core.xtc.header import HEADER_NBYTES, MAGICS, XTCHeader, parse_header

PADDING = 0
"""Bytes that the native decoder wants to have beyond a frame's."""


def scan(fd: int, nbytes: int) -> tuple[NDArray[np.int64], int]:
    """Return where the frames of an open file of `nbytes` begin, (F,) int64, and its atoms.

    Raises ValueError: with the frame, its offset and what is wrong.
    """
    offsets: list[int] = []
    n_atoms = offset = 0
    while offset < nbytes:
        header = _header_at(fd, len(offsets), offset, n_atoms)
        if offset + header.nbytes > nbytes:
            raise ValueError(
                f"frame {len(offsets)} at byte {offset}: it has {header.nbytes} bytes, "
                f"but the file ends after {nbytes - offset}"
            )
        n_atoms = header.n_atoms
        offsets.append(offset)
        offset += header.nbytes
    return np.array(offsets, np.int64), n_atoms


def read_headers(
    fd: int,
    first: int,
    offsets: NDArray[np.int64],
    n_atoms: int,
    vectors: NDArray[np.float32],
    time: NDArray[np.float64],
    step: NDArray[np.int64],
) -> None:
    """Fill in box vectors (nm), time (ps) and step of the frames that begin at `offsets`."""
    for i, offset in enumerate(offsets[:-1].tolist()):
        header = _header_at(fd, first + i, offset, n_atoms)
        if offset + header.nbytes != offsets[i + 1]:
            raise ValueError(
                f"frame {first + i} at byte {offset}: it has {header.nbytes} bytes, "
                f"but the next one is {offsets[i + 1] - offset} bytes on"
            )
        vectors[i] = np.reshape(header.vectors_nm, (3, 3))
        time[i] = header.time_ps
        step[i] = header.step


def read_positions(
    path: Path,
    first: int,
    offsets: NDArray[np.int64],
    n_atoms: int,
    positions: NDArray[np.float32],
    atoms: NDArray[np.int64] | None,
) -> None:
    """Fill in the positions (F, k, 3), angstrom, of the frames that begin at `offsets`.

    Their headers have been checked by `read_headers`.
    """
    from MDAnalysis.lib.formats.libmdaxdr import XTCFile

    scratch = np.empty((n_atoms, 3), np.float32)
    with XTCFile(str(path)) as file:
        file.set_offsets(offsets[:-1])
        for i in range(len(positions)):
            file.seek(i)
            if i == 0:  # libmdaxdr seeks to the file's begin for frame 0, whatever the offsets say
                file._bytes_seek(int(offsets[0]))
            target = scratch if atoms is not None else positions[i]
            try:
                file.read_direct_x(target)
            except (OSError, StopIteration) as error:
                raise ValueError(
                    f"frame {first + i} at byte {offsets[i]}: its coordinates do not decode"
                ) from error
            if atoms is not None:
                np.take(scratch, atoms, axis=0, out=positions[i])
    positions *= np.float32(10)


def encode(
    positions: NDArray[np.float32],
    vectors: NDArray[np.float32],
    time: NDArray[np.float32],
    step: NDArray[np.int32],
    precision: float,
) -> bytes:
    """Return the frames of `positions` (F, A, 3), nm, as XTC.

    Raises ValueError: a coordinate does not fit the integers of the format.
    """
    from MDAnalysis.lib.formats.libmdaxdr import XTCFile

    if positions.shape[1] > 9:
        for i, frame in enumerate(positions):
            scaled = frame.astype(np.float64) * precision
            if not (np.abs(scaled) < 2**31 - 3).all() or np.ptp(scaled, axis=0).max() >= 2**31:
                raise ValueError(f"frame {i}: coordinates do not fit 32-bit integers")
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        where = Path(folder, "frames.xtc")
        with XTCFile(str(where), "w") as file:
            for x, box, t, s in zip(positions, vectors, time, step, strict=True):
                file.write(x, box, int(s), float(t), precision)
        return where.read_bytes()


def _header_at(fd: int, frame: int, offset: int, n_atoms: int) -> XTCHeader:
    """Return the header at `offset`, which is to say `n_atoms` (0: any number)."""
    header = parse_header(os.pread(fd, HEADER_NBYTES, offset), frame, offset, n_atoms)
    if header.magic != MAGICS[0]:
        raise NotImplementedError(
            f"frame {frame} at byte {offset}: its byte count has 64 bits, which takes mdio's "
            "native module: install mdio where there is a C++ compiler"
        )
    return header
