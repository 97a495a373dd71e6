"""How our H5MD files end, by which they are known before HDF5 is asked; without h5py."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["SEAL", "SEAL_NBYTES", "is_sealed"]

SEAL, SEAL_NBYTES = b"mdioseal", 24


def is_sealed(path: Path) -> bool:
    """Return whether a file ends as ours do, so that damage to the rest does not hide whose it is.

    See `mdio.layouts.h5md.seal`.
    """
    try:
        with path.open("rb", buffering=0) as file:
            file.seek(-SEAL_NBYTES, os.SEEK_END)
            return file.read(len(SEAL)) == SEAL
    except OSError:
        return False
