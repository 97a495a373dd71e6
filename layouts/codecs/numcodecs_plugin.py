"""Frames of XTC files as chunks of Zarr's format 2: only imported by users of references.

numcodecs finds it by its name in metadata, through the entry point group ``numcodecs.codecs``.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numcodecs.abc import Codec
from numcodecs.compat import ensure_contiguous_ndarray, ndarray_copy
from numcodecs.registry import register_codec
from numpy.typing import NDArray

from mdio.core import xtc as xtc_native
from mdio.core.xtc import HEADER_NBYTES, parse_header


class XTCFrame(Codec):  # type: ignore[misc]
    """A frame of an XTC file, decoded to (atoms, 3) float32, angstrom."""

    codec_id = "mdio.xtc"

    def encode(self, buf: Any) -> Any:
        raise NotImplementedError("references are read only")

    def decode(self, buf: Any, out: Any = None) -> Any:
        """Return the positions of a frame; raises ValueError for other bytes."""
        raw: NDArray[np.uint8] = ensure_contiguous_ndarray(buf).view(np.uint8)
        header = parse_header(raw[:HEADER_NBYTES].tobytes(), 0, 0)
        if header.nbytes != raw.size:
            raise ValueError(f"an XTC frame of {header.nbytes} bytes in a chunk of {raw.size}")
        data = np.zeros(raw.size + xtc_native.kernels.PADDING, np.uint8)
        data[: raw.size] = raw
        positions = np.empty((1, header.n_atoms, 3), np.float32)
        vectors = np.empty((1, 3, 3), np.float32)
        time, step = np.empty(1), np.empty(1, np.int64)
        edges = np.array([0, raw.size], np.int64)
        xtc_native.decode(data, 0, edges, header.n_atoms, positions, vectors, time, step)
        return ndarray_copy(positions, out)


register_codec(XTCFrame)
