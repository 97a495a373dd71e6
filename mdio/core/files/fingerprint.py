"""Fingerprints, which identify source files without reading all of them."""

from __future__ import annotations

import stat
from collections.abc import Mapping, Sequence
from functools import lru_cache
from os import PathLike
from pathlib import Path
from typing import Any

from mdio.core.errors import SourceError
from mdio.core.files.reading import OpenFile, without_counting
from mdio.core.files.store import store_at, to_path
from mdio.core.kernels import crc32c

HEAD_NBYTES = 64

END_NBYTES = 64 * 1024
"""Bytes of the head and of the tail of a file that go into its fingerprint."""

FRAME_COUNT_NBYTES = 32
"""DCD and NetCDF files have their number of frames within this many bytes from the beginning: these
bytes change while such a file grows."""

KEY_NAMES = {
    "nbytes": "size in bytes",
    "inode": "inode",
    "mtime_ns": "modification time in ns",
    "crc32c_head": "checksum of the first 64 KiB",
    "crc32c_tail": "checksum of the last 64 KiB",
}

CONTENT_KEYS = ("nbytes", "crc32c_head", "crc32c_tail")
"""Keys of a fingerprint that a copy of the file elsewhere has, too."""

MANIFESTS = ("manifest.json", "zarr.json", ".zattrs", ".zgroup")
"""The file that identifies a folder: of segments, of Zarr v3, of Zarr v2."""


def fingerprint(path: str | PathLike[str]) -> dict[str, Any]:
    """Return what identifies the contents of a file, or a folder by its manifest, for JSON.

    That is ``path`` (absolute), ``nbytes``, ``mtime_ns``, ``crc32c_head`` and ``crc32c_tail`` (of
    the first and the last 64 KiB).
    Raises SourceError: it does not exist, cannot be read, or is a folder without a manifest.
    """
    state = file_state(to_path(path))
    del state["inode"]
    return {"path": str(to_path(path).absolute()), **state}


def content_of(state: Mapping[str, Any]) -> list[Any]:
    """Return the part of a fingerprint that a copy of the file elsewhere has, too."""
    return [state.get(name) for name in CONTENT_KEYS]


def is_unchanged_source(path: Path, source: Mapping[str, Any]) -> bool:
    """Return whether a file still begins as it did when an output was made from it.

    `source`: the ``source`` of the output's manifest.
    """
    for recorded in source.get("files", [source]):
        if recorded.get("path") == str(path.absolute()):
            current = file_state(path, recorded["nbytes"])
            return current["nbytes"] >= recorded["nbytes"] and all(
                current[end] == recorded[end] for end in ("crc32c_head", "crc32c_tail")
            )
    return False


class SourceStates:
    """The states of source files when they were opened, to detect changes while they are read.

    `may_grow`: whether they may grow meanwhile, where only the frames of the beginning are read.
    """

    def __init__(self, paths: Sequence[str | PathLike[str]], *, may_grow: bool = False) -> None:
        self.may_grow = may_grow
        self._skipped_nbytes = FRAME_COUNT_NBYTES if may_grow else 0
        self._states = {
            path: file_state(path, skip_nbytes=self._skipped_nbytes) for path in map(to_path, paths)
        }

    def check(self) -> None:
        """Raise SourceError if a file has changed since, or does not exist any more."""
        for path, state in self._states.items():
            new_state = file_state(
                path, state["nbytes"] if self.may_grow else None, self._skipped_nbytes
            )
            keys = ("inode", "crc32c_head", "crc32c_tail") if self.may_grow else tuple(state)
            changed = [key for key in keys if new_state[key] != state[key]]
            if changed or new_state["nbytes"] < state["nbytes"]:
                key = changed[0] if changed else "nbytes"
                raise SourceError(
                    f"{path}: changed while it was read (its {KEY_NAMES[key]} was {state[key]}, "
                    f"now it is {new_state[key]}), so it was not used; wait until no program "
                    "writes it any more, and start again"
                )


def file_state(path: Path, nbytes: int | None = None, skip_nbytes: int = 0) -> dict[str, int]:
    """Return ``nbytes``, ``inode``, ``mtime_ns``, ``crc32c_head`` and ``crc32c_tail`` of a file.

    For a folder, those of its manifest. `nbytes`: only the first `nbytes` of a file that may grow
    are read. `skip_nbytes`: bytes at the beginning that may change.
    """
    file_path = identifying_file(path.absolute())
    try:
        open_file = OpenFile(file_path)
    except SourceError as error:
        reason = getattr(error.__cause__, "strerror", None) or error
        raise SourceError(f"{path}: cannot be read ({reason}); check the path") from error
    with open_file as file:
        status = file.status()
        size = status.st_size if nbytes is None else min(nbytes, status.st_size)
        head = file.peek(skip_nbytes, max(0, min(END_NBYTES, size) - skip_nbytes))
        begin = max(skip_nbytes, size - END_NBYTES)
        tail = file.peek(begin, max(0, size - begin))
    return {
        "nbytes": status.st_size,
        "inode": status.st_ino,
        "mtime_ns": status.st_mtime_ns,
        "crc32c_head": crc32c(head),
        "crc32c_tail": crc32c(tail),
    }


def identifying_file(path: Path) -> Path:
    """Return the file that identifies `path`: itself, or the manifest of a folder.

    Raises SourceError: it is a folder without one, or cannot be read.
    """
    try:
        if not path.is_dir():
            return path
        for name in MANIFESTS:
            if (path / name).is_file():
                return path / name
    except OSError as error:
        raise SourceError(
            f"{path}: cannot be read ({error.strerror}); check its disk or network and try again"
        ) from error
    raise SourceError(
        f"{path}: a folder without a manifest (none of {', '.join(MANIFESTS)}); "
        "give a trajectory file or a finished output of mdio"
    )


def read_head(path: Path) -> bytes:
    """Return the first `HEAD_NBYTES` bytes of a file; no bytes for anything else.

    Read without a buffer: that would have the block size that the file system reports, which may be
    a gigabyte on striped storage.
    """
    return _read_end(path, at_tail=False)


def read_tail(path: Path) -> bytes:
    """Return the last `HEAD_NBYTES` bytes of a file; see `read_head`."""
    return _read_end(path, at_tail=True)


def _read_end(path: Path, *, at_tail: bool) -> bytes:
    try:
        status = path.stat()
    except OSError:
        return b""
    if not stat.S_ISREG(status.st_mode):
        return b""
    begin = max(0, status.st_size - HEAD_NBYTES) if at_tail else 0
    if at_tail and store_at(path).opening_waits:
        # The size of an object may be outdated: reading it shows that, and drops it from the cache.
        return _read_bytes.__wrapped__(path, begin)
    return _read_bytes(
        path, begin, status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns
    )


@lru_cache(maxsize=16)
def _read_bytes(path: Path, begin: int, *_: int) -> bytes:
    with without_counting(), OpenFile(path) as file:
        return file.peek(begin, HEAD_NBYTES)
