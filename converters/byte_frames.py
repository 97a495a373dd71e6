"""Where the frames of a native file lie, as bytes that can be copied into another file."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mdio.core import xtc_codec
from mdio.core.index import FrameIndex, load_index
from mdio.layouts import trr
from mdio.layouts.base import Layout
from mdio.layouts.dcd import DCDLayout
from mdio.layouts.ncdf import NCDFLayout
from mdio.layouts.netcdf3 import ClassicFile

__all__ = ["ByteFrames", "byte_frames", "joined_index"]

SCANS = {"xtc": xtc_codec.scan, "trr": trr.scan}
CDF5 = 5
"""Version of classic NetCDF that counts in 64 bits."""
INT32_MAX = (1 << 31) - 1


@dataclass(frozen=True, slots=True, eq=False)
class ByteFrames:
    """The frames of one file as runs of bytes.

    Attributes
    ----------
    path
        The file.
    edges : (F + 1,) int64
        Where each frame begins, and where the last one ends.
    header
        Gives what is to stand before frames ``start:stop`` in a file of their own; None where
        nothing does, so that frames of several files can follow one another.
    """

    path: Path
    edges: NDArray[np.int64]
    header: Callable[[int, int], bytes] | None = None

    @property
    def n_frames(self) -> int:
        """Number of frames F."""
        return len(self.edges) - 1


def byte_frames(layout: Layout) -> ByteFrames | None:
    """Return the frames of a native file; None where copying bytes would not make valid files.

    That is so for DCD files with fixed atoms (only the first frame has them) or with steps beyond
    32 bits, NetCDF-4 files or those without times, and what is no native file.

    Raises
    ------
    SourceError
        The file is damaged.
    """
    if layout.name in SCANS:
        index = load_index(layout.path, SCANS[layout.name], layout.info.n_atoms)
        return ByteFrames(layout.path, np.append(index.offsets, np.int64(index.nbytes)))
    if isinstance(layout, DCDLayout):
        return _dcd_frames(layout)
    if isinstance(layout, NCDFLayout):
        return _ncdf_frames(layout)
    return None


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
    size = header.marker.itemsize

    def own_header(start: int, stop: int) -> bytes:
        out = np.frombuffer(raw, np.uint8).copy()
        control = out[size + 4 : size + 12].view(f"{header.order}i4")
        control[:] = (stop - start, header.istart + stride * start)
        return out.tobytes()

    edges = _equal_frames(layout, header.nbytes, header.frame_nbytes(header.n_atoms))
    return ByteFrames(layout.path, edges, own_header)


def _ncdf_frames(layout: NCDFLayout) -> ByteFrames | None:
    """Return the records of a classic NetCDF file; the header counts them."""
    data = layout.data
    if not isinstance(data, ClassicFile) or "time" not in data.variables:
        return None  # without times the frames are counted, anew in each file
    records = [variable for variable in data.variables.values() if variable.is_record]
    begin = min((variable.begin for variable in records), default=0)
    edges = _equal_frames(layout, begin, data.record_nbytes)
    fixed = [
        v.begin + v.row_nbytes * v.shape[0] for v in data.variables.values() if v not in records
    ]
    if not data.variables["coordinates"].is_record or edges[-1] > data.file.nbytes:
        return None
    if max(fixed, default=0) > begin:
        return None
    with layout.path.open("rb") as file:
        raw = file.read(begin)
    count = struct.Struct(">q" if raw[3] == CDF5 else ">i")

    def own_header(start: int, stop: int) -> bytes:
        return raw[:4] + count.pack(stop - start) + raw[4 + count.size :]

    return ByteFrames(layout.path, edges, own_header)


def joined_index(parts: list[tuple[ByteFrames, int, int]], n_atoms: int) -> FrameIndex:
    """Return the index of a file of frames ``start:stop`` of each part, one after the other."""
    at = 0
    offsets = []
    for frames, start, stop in parts:
        edges = frames.edges[start : stop + 1]
        offsets.append(edges[:-1] - edges[0] + at)
        at += int(edges[-1] - edges[0])
    return FrameIndex(np.concatenate(offsets), at, n_atoms)
