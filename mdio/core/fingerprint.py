"""What tells one source file from another without reading all of it."""

from __future__ import annotations

import os
from os import PathLike
from pathlib import Path
from typing import Any

from mdio.core.errors import SourceError
from mdio.core.kernels import crc32c

__all__ = ["fingerprint"]

END_NBYTES = 64 * 1024
"""Bytes of the head and of the tail of a file that go into its fingerprint."""

MANIFESTS = ("manifest.json", "zarr.json", ".zattrs", ".zgroup")
"""The file that stands for a folder: that of segments, of Zarr v3, of Zarr v2."""


def fingerprint(path: str | PathLike[str]) -> dict[str, Any]:
    """Return what identifies the contents of a file or a folder.

    Parameters
    ----------
    path
        A trajectory. A folder (segments, zarr) is known by its manifest, which is written last.

    Returns
    -------
    dict
        ``path`` (absolute), ``nbytes``, ``mtime_ns``, ``crc32c_head`` and ``crc32c_tail`` (of the
        first and the last 64 KiB): plain values, fit for JSON. All but the path are those of the
        manifest for a folder.

    Raises
    ------
    SourceError
        Nothing is there, it cannot be read, or the folder has no manifest.
    """
    where = Path(path).absolute()
    identifying = _identifying_file(where)
    try:
        with identifying.open("rb", buffering=0) as file:
            status = os.fstat(file.fileno())
            head = os.pread(file.fileno(), END_NBYTES, 0)
            tail = os.pread(file.fileno(), END_NBYTES, max(0, status.st_size - END_NBYTES))
    except OSError as error:
        raise SourceError(f"{path}: cannot be read ({error.strerror}); check the path") from error
    return {
        "path": str(where),
        "nbytes": status.st_size,
        "mtime_ns": status.st_mtime_ns,
        "crc32c_head": crc32c(head),
        "crc32c_tail": crc32c(tail),
    }


def _identifying_file(where: Path) -> Path:
    if not where.is_dir():
        return where
    for name in MANIFESTS:
        if (where / name).is_file():
            return where / name
    raise SourceError(
        f"{where}: a folder without a manifest (none of {', '.join(MANIFESTS)}); "
        "give a trajectory file or a finished output of mdio"
    )
