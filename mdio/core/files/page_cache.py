"""Dropping files from the system's page cache, and checking that they were dropped."""

from __future__ import annotations

import ctypes
import mmap
import os
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from mdio.core.files.store import store_at
from mdio.core.files.writing import libc_function

MAX_RESIDENT_SHARE = 0.05
"""Largest share of a dropped file that may stay: the kernel keeps pages that it is using."""
MAX_ATTEMPTS = 5
"""Pages that another core has just used cannot be dropped at the first attempt."""
PAUSE_S = 0.02
"""Time between attempts."""


def files_in(path: Path) -> Iterator[Path]:
    """Yield a file itself, or all files below a folder, on a disk or in a store."""
    names = sorted(store_at(path).sizes(path)) if path.is_dir() else [""]
    yield from (path / name for name in names)


def drop_cache(path: Path) -> str | None:
    """Drop a file, or all files in a folder, from the page cache; return why some stay, if they do.

    ``POSIX_FADV_DONTNEED`` (posix_fadvise(2)) may have no effect: memory file systems have no disk
    below, network ones may ignore it. So ``mincore(2)`` shows afterwards which pages stay. Objects
    of a store are never in the page cache.
    """
    if not store_at(path).in_page_cache:
        return None
    if not hasattr(os, "posix_fadvise"):
        return "this system has no posix_fadvise"
    for file in files_in(path):
        try:
            problem = _drop_file(file)
        except OSError as error:
            problem = error.strerror or str(error)
        if problem is not None:
            return f"{file}: {problem}"
    return None


def _drop_file(file: Path) -> str | None:
    fd = os.open(file, os.O_RDONLY)
    try:
        nbytes = os.fstat(fd).st_size
        for attempt in range(MAX_ATTEMPTS):
            if attempt:
                time.sleep(PAUSE_S)
            os.fsync(fd)  # pages that are not on disk cannot be dropped
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            share = _resident_share(fd, nbytes) if nbytes else 0.0
            if share is None:
                return "the system does not say whether its bytes are in memory"
            if share <= MAX_RESIDENT_SHARE:
                return None
    finally:
        os.close(fd)
    return f"{share:.0%} of its bytes stayed in the page cache after a request to drop them"


def _resident_share(fd: int, nbytes: int) -> float | None:
    """Return the share of a file's pages that are in memory; None where that is unknown."""
    mincore = libc_function("mincore", ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)
    if mincore is None:
        return None
    pages = np.zeros(-(-nbytes // mmap.PAGESIZE), np.uint8)
    with mmap.mmap(fd, nbytes, prot=mmap.PROT_READ) as mapped:
        view = np.frombuffer(mapped, np.uint8)
        failed = mincore(view.ctypes.data, nbytes, pages.ctypes.data)
        del view  # a mapping with a view cannot be closed
    return None if failed else float((pages & 1).mean())
