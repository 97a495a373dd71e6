"""Recognising H5MD files by their first and last bytes, and opening them with h5py."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from mdio.core.files.fingerprint import read_head, read_tail
from mdio.core.files.store import store_at

if TYPE_CHECKING:
    import h5py

SIGNATURE = b"\x89HDF\r\n\x1a\n"

SEAL, SEAL_NBYTES = b"mdioseal", 24
"""First bytes of the seal, and its size."""


def is_sealed(path: Path) -> bool:
    """Return whether a file ends with mdio's seal, by which even a damaged file is recognised."""
    store = store_at(path)
    if store.opening_waits and is_hdf5(path):
        store.prefetch_end(path)  # HDF5 will read much of it
    try:
        return read_tail(path)[-SEAL_NBYTES:].startswith(SEAL)
    except OSError:
        return False


def is_hdf5(path: Path) -> bool:
    """Return whether a file begins as HDF5 files do (without a user block)."""
    try:
        return read_head(path).startswith(SIGNATURE)
    except OSError:
        return False


def open_hdf5(path: Path) -> h5py.File:
    """Open a file for reading."""
    import h5py

    # Some shared file systems have no locks; published outputs are not written to anyway.
    return h5py.File(store_at(path).source_for_library(path), "r", locking="best-effort")
