"""DCD frames as bytes that can be copied: the header counts them and dates the first one."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mdio.core.errors import SourceError
from mdio.core.files.reading import OpenFile
from mdio.layouts.frame_bytes import FrameBytes
from mdio.layouts.native.dcd.header import CELL_NBYTES, DCDHeader

INT32_MAX = (1 << 31) - 1


@dataclass(frozen=True, slots=True)
class _Header:
    """The header of a DCD file: it counts the frames and says when the first one was."""

    raw: bytes
    at: int
    order: str
    istart: int
    stride: int

    def __call__(self, start: int, stop: int) -> bytes:
        numbers = struct.pack(f"{self.order}2i", stop - start, self.istart + self.stride * start)
        return self.raw[: self.at] + numbers + self.raw[self.at + len(numbers) :]


@dataclass(frozen=True, slots=True)
class _Check:
    """Compares the lengths of records with what they should be."""

    markers: tuple[tuple[int, bytes], ...]
    """What every frame has to hold, and at which of its bytes, to be readable."""

    def __call__(
        self, data: NDArray[np.uint8], run: range, frames: FrameBytes, _n_atoms: int
    ) -> None:
        stride = int(frames.edges[1] - frames.edges[0])
        rows = data[: len(run) * stride].reshape(len(run), stride)
        for offset, marker in self.markers:
            found = rows[:, offset : offset + len(marker)]
            wrong = (found != np.frombuffer(marker, np.uint8)).any(axis=1)
            if wrong.any():
                row = run.start + int(np.argmax(wrong))
                raise SourceError(
                    f"{frames.path}: frame {frames.first + row} is damaged: the length of a record "
                    f"of it, at byte {int(frames.edges[row]) + offset}, is not what it should be; "
                    "copy the file from where it came from again"
                )


def bytes_of(path: Path, header: DCDHeader, n_frames: int) -> FrameBytes | None:
    """Return where frames lie; None if copies would not make valid files.

    That is so with fixed atoms (only the first frame has them) or with steps beyond 32 bits.
    """
    stride = max(header.nsavc, 1)
    if header.free is not None or header.istart + stride * n_frames > INT32_MAX:
        return None
    with OpenFile(path) as file:
        raw = file.peek(0, header.nbytes)
    own = _Header(raw, header.marker.itemsize + 4, header.order, header.istart, stride)
    numbers = np.arange(n_frames + 1, dtype=np.int64)
    edges = header.nbytes + header.frame_nbytes(header.n_atoms) * numbers
    check = _Check(tuple(_markers(header)))
    return FrameBytes(path, edges, own, check=check, byte_order=header.order)


def _markers(header: DCDHeader) -> Iterator[tuple[int, bytes]]:
    """Yield the lengths that stand before and behind each record of a frame."""
    at, size = 0, header.marker.itemsize
    lengths = [CELL_NBYTES] * header.has_cell + [4 * header.n_atoms] * header.n_dimensions
    for nbytes in lengths:
        marker = np.array(nbytes, header.marker).tobytes()
        yield at, marker
        yield at + size + nbytes, marker
        at += nbytes + 2 * size
