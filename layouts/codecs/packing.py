"""How the parts of a quantised chunk become Blosc buffers."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
from numpy.typing import NDArray

BLOSC_HEADER = struct.Struct("<4BIII")
BITS, BYTES = 2, 1
"""Blosc's numbers of its two shuffles."""
SHUFFLES = {"zstd": BITS, "lz4": BYTES}
"""Planes of bits suit an entropy coder; LZ4 has none and does better, and faster, on bytes."""

Packing = tuple[str, int, int]
"""Compressor, level and shuffle of a Blosc buffer."""
KEPT: Packing = ("lz4hc", 5, 0)
"""Of what is kept of atoms, whose runs are found as they lie."""
DESCRIBED: Packing = ("zstd", 3, 0)
"""Of what a rigid chunk says of its atoms: 0.2 to 0.4% of the chunk less than ..."""
DESCRIBED_FAST: Packing = ("lz4hc", 1, 0)
"""... this, which one frame or a few atoms at random do not wait for, and HDF5's filter reads.
Higher levels take up to a fifth of writing a chunk."""


def compress(numbers: NDArray[Any], packing: Packing = KEPT) -> bytes:
    """Return a Blosc buffer; floats are shuffled by bytes, whatever `packing` says."""
    from numcodecs import blosc  # 0.1 s to import

    name, level, shuffle = packing
    data = np.ascontiguousarray(numbers).reshape(-1)
    if data.size % 8:
        data = np.append(data, np.zeros(-data.size % 8, data.dtype))
    packed: bytes = blosc.compress(
        data,
        name.encode(),
        level,
        shuffle=BYTES if numbers.dtype.kind == "f" else shuffle,
        blocksize=data.nbytes,
        typesize=numbers.dtype.itemsize,
    )
    return packed
