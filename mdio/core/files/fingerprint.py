"""Fingerprints: how one source file is told from another without reading all of it."""

from __future__ import annotations

import stat
from collections.abc import Sequence
from functools import lru_cache
from os import PathLike
from pathlib import Path
from typing import Any

from mdio.core.errors import SourceError
from mdio.core.files.reading import OpenFile, uncounted
from mdio.core.files.store import store_at, to_path
from mdio.core.kernels import crc32c

HEAD_NBYTES = 64

END_NBYTES = 64 * 1024
"""Bytes of the head and of the tail of a file that go into its fingerprint."""

COUNTS_NBYTES = 32
"""DCD and NetCDF files count their frames within so many bytes from the beginning: these change
while such a file grows."""

NAMES = {
    "nbytes": "size in bytes",
    "inode": "inode",
    "mtime_ns": "modification time in ns",
    "crc32c_head": "checksum of the first 64 KiB",
    "crc32c_tail": "checksum of the last 64 KiB",
}

MANIFESTS = ("manifest.json", "zarr.json", ".zattrs", ".zgroup")
"""The file that stands for a folder: that of segments, of Zarr v3, of Zarr v2."""


def fingerprint(path: str | PathLike[str]) -> dict[str, Any]:
    """Return what identifies the contents of a file or a folder.

    `path`: a trajectory. A folder (segments, zarr) is known by its manifest, which is written last.
    Returns dict: ``path`` (absolute), ``nbytes``, ``mtime_ns``, ``crc32c_head`` and ``crc32c_tail``
    (of the first and the last 64 KiB): plain values, fit for JSON. All but the path are those of
    the manifest for a folder.
    Raises SourceError: nothing is there, it cannot be read, or the folder has no manifest.
    """
    state = file_state(to_path(path))
    del state["inode"]
    return {"path": str(to_path(path).absolute()), **state}


class SourceStates:
    """What files were when they were opened: a source must not change while it is read.

    Size, modification time, inode, and the bytes at both ends are compared.

    `paths`: files or folders. `may_grow`: whether more may be appended meanwhile: only frames are
    read that were there.
    Raises SourceError: see `fingerprint`.
    """

    def __init__(self, paths: Sequence[str | PathLike[str]], *, may_grow: bool = False) -> None:
        self.may_grow = may_grow
        self._skipped = COUNTS_NBYTES if may_grow else 0
        self._states = {
            path: file_state(path, skipped=self._skipped) for path in map(to_path, paths)
        }

    def check(self) -> None:
        """See that nothing has changed.

        Raises SourceError: a file has changed since, or is gone.
        """
        for path, before in self._states.items():
            now = file_state(path, before["nbytes"] if self.may_grow else None, self._skipped)
            keys = ("inode", "crc32c_head", "crc32c_tail") if self.may_grow else tuple(before)
            changed = [name for name in keys if now[name] != before[name]]
            if changed or now["nbytes"] < before["nbytes"]:
                name = changed[0] if changed else "nbytes"
                raise SourceError(
                    f"{path}: changed while it was read (its {NAMES[name]} was {before[name]}, "
                    f"now it is {now[name]}), so nothing was made of it; wait until nothing "
                    "writes it any more, and begin again"
                )


def file_state(path: Path, nbytes: int | None = None, skipped: int = 0) -> dict[str, int]:
    """Return values that identify the contents of a file or folder.

    `path`: the file, or a folder that has a manifest. `nbytes`: of a file that may grow: only so
    many bytes from its beginning are looked at. `skipped`: bytes at the beginning that may change.
    Returns dict: ``nbytes`` (of the whole file), ``inode``, ``mtime_ns``, ``crc32c_head`` and
    ``crc32c_tail``, of up to 64 KiB at both ends.
    Raises SourceError: it cannot be read.
    """
    with open_source(_identifying_file(path.absolute()), path) as file:
        status = file.status()
        size = status.st_size if nbytes is None else min(nbytes, status.st_size)
        head = file.peek(skipped, max(0, min(END_NBYTES, size) - skipped))
        begin = max(skipped, size - END_NBYTES)
        tail = file.peek(begin, max(0, size - begin))
    return {
        "nbytes": status.st_size,
        "inode": status.st_ino,
        "mtime_ns": status.st_mtime_ns,
        "crc32c_head": crc32c(head),
        "crc32c_tail": crc32c(tail),
    }


def open_source(where: Path, path: object) -> OpenFile:
    """Open the file `where` that stands for `path`; raises SourceError."""
    try:
        return OpenFile(where)
    except SourceError as error:
        reason = getattr(error.__cause__, "strerror", None) or error
        raise SourceError(f"{path}: cannot be read ({reason}); check the path") from error


def _identifying_file(where: Path) -> Path:
    try:
        if not where.is_dir():
            return where
        for name in MANIFESTS:
            if (where / name).is_file():
                return where / name
    except OSError as error:
        raise SourceError(
            f"{where}: cannot be read ({error.strerror}); check its disk or network and try again"
        ) from error
    raise SourceError(
        f"{where}: a folder without a manifest (none of {', '.join(MANIFESTS)}); "
        "give a trajectory file or a finished output of mdio"
    )


def read_head(path: Path) -> bytes:
    """Return the first `HEAD_NBYTES` bytes of a file; none of what is no file.

    Read without a buffer: the buffer of a file has the block size that its file system reports,
    and on striped storage that may be a gigabyte.

    Raises OSError: it cannot be opened or read.
    """
    return _read_end(path, tail=False)


def read_tail(path: Path) -> bytes:
    """Return the last `HEAD_NBYTES` bytes of a file; see `read_head`."""
    return _read_end(path, tail=True)


def _read_end(path: Path, *, tail: bool) -> bytes:
    try:
        status = path.stat()
    except OSError:
        return b""
    if not stat.S_ISREG(status.st_mode):
        return b""
    begin = max(0, status.st_size - HEAD_NBYTES) if tail else 0
    if tail and store_at(path).opening_waits:
        # What is known of an object may be old: reading it shows that, and it is forgotten then.
        return _read_bytes.__wrapped__(path, begin)
    return _read_bytes(
        path, begin, status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns
    )


@lru_cache(maxsize=16)
def _read_bytes(path: Path, begin: int, *_: int) -> bytes:
    with uncounted(), OpenFile(path) as file:
        return file.peek(begin, HEAD_NBYTES)
