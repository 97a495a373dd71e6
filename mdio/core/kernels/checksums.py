"""Bytes of buffers: their CRC-32C, that of several joined, and bytes in the order of planes."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from mdio.core.kernels import backend, checks
from mdio.core.kernels.checks import Buffer


def shuffle(data: Buffer, itemsize: int) -> bytes:
    """Return the bytes reordered as HDF5's shuffle filter does it.

    All first bytes of the items come first, then all second bytes, and so on; trailing bytes that
    do not fill an item stay where they are.
    """
    if itemsize < 1:
        raise ValueError(f"itemsize is {itemsize}; it must be positive")
    return bytes(backend.module.shuffle(checks.buffer(data), itemsize))


def unshuffle(data: Buffer, itemsize: int, out: bytearray | memoryview | NDArray[Any]) -> None:
    """Undo `shuffle`: fill `out`, a writable buffer of as many bytes, that is not `data`."""
    if itemsize < 1:
        raise ValueError(f"itemsize is {itemsize}; it must be positive")
    source, target = checks.buffer(data), checks.buffer(out)
    if source.nbytes != target.nbytes:
        raise ValueError(f"out has {target.nbytes} bytes; it must have {source.nbytes}")
    if source.nbytes:
        if target.readonly:
            raise ValueError("out is read-only")
        backend.module.unshuffle(source, itemsize, target)


# These are called for every chunk: without a function between.

crc32c = backend.module.crc32c
"""Returns the CRC-32C (Castagnoli; RFC 3720) of a buffer.

``crc32c(data, value=0)``: `data`: any C-contiguous buffer, arrays included. `value`: checksum of
what comes before `data`, to go on from it.
"""

crc32c_spans = backend.module.crc32c_pieces
"""Returns the CRC-32C of consecutive spans, (n,) uint32, all with one call.

``crc32c_spans(data, edges)``: `data`: any C-contiguous buffer; it begins with the first span.
`edges` ((n + 1,) int64): where each span begins, and where the last one ends; only their
differences count.
"""

crc32c_joined = backend.module.crc32c_joined
"""Returns the CRC-32C of consecutive spans together.

``crc32c_joined(crcs, edges)``: from `crc32c_spans` of the same edges.
"""

read_rows = backend.module.read_rows
"""Reads neighbouring rows of an open file and compares the CRC-32C of each span of each of them.

``read_rows(fd, offset, rows, crcs, span_nbytes)``: fills `rows`, a C-contiguous buffer, from
`offset` on; `crcs` ((R, P) uint32): of each row's spans. Returns bool: whether all was there, and
as it should be.
"""
