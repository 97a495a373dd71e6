"""Where the frames of a native file lie, as bytes that can be copied into another file."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mdio.core.files.index import FrameIndex, load_index
from mdio.core.files.piece_sums import PieceSums
from mdio.core.xtc import codec as xtc_codec
from mdio.layouts.base import Layout
from mdio.layouts.native.dcd.header import CELL_NBYTES, DCDHeader
from mdio.layouts.native.dcd.layout import DCDLayout
from mdio.layouts.native.netcdf.classic import ClassicFile
from mdio.layouts.native.netcdf.layout import NCDFLayout
from mdio.layouts.native.trr import layout as trr

__all__ = ["ByteFrames", "byte_frames", "joined_index"]

SCANS = {"xtc": xtc_codec.scan, "trr": trr.scan}
CDF5 = 5
"""Version of classic NetCDF that counts in 64 bits."""
INT32_MAX = (1 << 31) - 1


@dataclass(frozen=True, slots=True, eq=False)
class ByteFrames:
    """Neighbouring frames of one file as runs of bytes.

    Attributes
    ----------
    path
        The file.
    edges : (F + 1,) int64
        Where each frame begins, and where the last one ends.
    header
        Gives what is to stand before frames ``start:stop`` of the file in a file of their own;
        None where nothing does, so that frames of several files can follow one another.
    first
        Number of the first of these frames in the file.
    sums
        Checksums of the whole file that its frames are to have, if there are any.
    markers
        What every frame has to hold, and at which of its bytes, to be readable.
    """

    path: Path
    edges: NDArray[np.int64]
    header: Callable[[int, int], bytes] | None = None
    first: int = 0
    sums: PieceSums | None = None
    markers: Sequence[tuple[int, bytes]] | None = None

    @property
    def n_frames(self) -> int:
        """Number of frames F."""
        return len(self.edges) - 1

    @property
    def nbytes(self) -> int:
        """Bytes of all frames."""
        return int(self.edges[-1] - self.edges[0])

    def part(self, start: int, stop: int) -> ByteFrames:
        """Return frames ``start:stop`` of these."""
        edges = self.edges[start : stop + 1]
        return replace(self, edges=edges, first=self.first + start)


@dataclass(frozen=True, slots=True)
class _DCDHeader:
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
class _NetCDFHeader:
    """The header of a classic NetCDF file: it counts the records."""

    raw: bytes

    def __call__(self, start: int, stop: int) -> bytes:
        count = struct.pack(">q" if self.raw[3] == CDF5 else ">i", stop - start)
        return self.raw[:4] + count + self.raw[4 + len(count) :]


def byte_frames(layout: Layout) -> ByteFrames | None:
    """Return the frames of a native file; None where copying bytes would not make valid files.

    That is so for DCD files with fixed atoms (only the first frame has them) or with steps beyond
    32 bits, NetCDF-4 files or those without times, and what is no native file.

    Raises
    ------
    SourceError
        The file is damaged.
    """
    frames = None
    if layout.name in SCANS:
        index = load_index(layout.path, SCANS[layout.name], layout.info.n_atoms)
        frames = ByteFrames(layout.path, np.append(index.offsets, np.int64(index.nbytes)))
    elif isinstance(layout, DCDLayout):
        frames = _dcd_frames(layout)
    elif isinstance(layout, NCDFLayout):
        frames = _ncdf_frames(layout)
    return None if frames is None else replace(frames, sums=layout.options.get("sums"))


def _equal_frames(layout: Layout, begin: int, nbytes: int) -> NDArray[np.int64]:
    return begin + nbytes * np.arange(layout.info.n_frames + 1, dtype=np.int64)


def _dcd_frames(layout: DCDLayout) -> ByteFrames | None:
    """Return the frames of a DCD file; the header counts them and says when the first one was."""
    header = layout.header
    stride = max(header.nsavc, 1)
    if header.free is not None or header.istart + stride * layout.info.n_frames > INT32_MAX:
        return None
    with layout.path.open("rb") as file:
        raw = file.read(header.nbytes)
    own = _DCDHeader(raw, header.marker.itemsize + 4, header.order, header.istart, stride)
    edges = _equal_frames(layout, header.nbytes, header.frame_nbytes(header.n_atoms))
    return ByteFrames(layout.path, edges, own, markers=list(_dcd_markers(header)))


def _dcd_markers(header: DCDHeader) -> Iterator[tuple[int, bytes]]:
    """Yield the lengths that stand before and behind each record of a frame."""
    at, size = 0, header.marker.itemsize
    lengths = [CELL_NBYTES] * header.has_cell + [4 * header.n_atoms] * header.n_dimensions
    for nbytes in lengths:
        marker = np.array(nbytes, header.marker).tobytes()
        yield at, marker
        yield at + size + nbytes, marker
        at += nbytes + 2 * size


def _ncdf_frames(layout: NCDFLayout) -> ByteFrames | None:
    """Return the records of a classic NetCDF file; the header counts them."""
    data = layout.data
    if not isinstance(data, ClassicFile) or "time" not in data.variables:
        return None  # without times the frames are counted, anew in each file
    records = [variable for variable in data.variables.values() if variable.is_record]
    begin = min((variable.begin for variable in records), default=0)
    edges = _equal_frames(layout, begin, data.record_nbytes)
    fixed = [
        v.begin + v.dtype.itemsize * math.prod(v.shape)
        for v in data.variables.values()
        if v not in records
    ]
    if not data.variables["coordinates"].is_record or edges[-1] > data.file.nbytes:
        return None
    if max(fixed, default=0) > begin:
        return None
    with layout.path.open("rb") as file:
        raw = file.read(begin)
    return ByteFrames(layout.path, edges, _NetCDFHeader(raw))


def joined_index(parts: list[tuple[ByteFrames, int, int]], n_atoms: int) -> FrameIndex:
    """Return the index of a file of frames ``start:stop`` of each part, one after the other."""
    at = 0
    offsets = []
    for frames, start, stop in parts:
        edges = frames.edges[start : stop + 1]
        offsets.append(edges[:-1] - edges[0] + at)
        at += int(edges[-1] - edges[0])
    return FrameIndex(np.concatenate(offsets), at, n_atoms)
