"""HDF5's shuffle filter: bytes of numbers by their place, which compresses better."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from mdio.core.kernels import backend, checks
from mdio.core.kernels.checks import Buffer

__all__ = [
    "shuffle",
    "unshuffle",
]


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
