"""Records of classic NetCDF files as bytes that can be copied: the header counts them."""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mdio.layouts.frame_bytes import FrameBytes
from mdio.layouts.native.netcdf.classic import ClassicFile

CDF5 = 5
"""Version of classic NetCDF that counts in 64 bits."""


@dataclass(frozen=True, slots=True)
class _Header:
    """The header of a classic NetCDF file: it counts the records."""

    raw: bytes

    def __call__(self, start: int, stop: int) -> bytes:
        count = struct.pack(">q" if self.raw[3] == CDF5 else ">i", stop - start)
        return self.raw[:4] + count + self.raw[4 + len(count) :]


def bytes_of(path: Path, data: ClassicFile, n_frames: int) -> FrameBytes | None:
    """Return where records lie; None if copies would not make valid files (without times)."""
    if "time" not in data.variables:
        return None  # without times the frames are counted, again in each file
    records = [variable for variable in data.variables.values() if variable.is_record]
    begin = min((variable.begin for variable in records), default=0)
    edges = begin + data.record_nbytes * np.arange(n_frames + 1, dtype=np.int64)
    fixed = [
        v.begin + v.dtype.itemsize * math.prod(v.shape)
        for v in data.variables.values()
        if v not in records
    ]
    if not data.variables["coordinates"].is_record or edges[-1] > data.file.nbytes:
        return None
    if max(fixed, default=0) > begin:
        return None
    return FrameBytes(path, edges, _Header(data.file.peek(0, begin)), byte_order=">")
