"""How files begin: what tells formats apart, read once and nothing else."""

from __future__ import annotations

import os
import stat
from functools import lru_cache
from pathlib import Path

__all__ = ["HEAD_NBYTES", "head_of"]

HEAD_NBYTES = 64


def head_of(path: Path) -> bytes:
    """Return the first `HEAD_NBYTES` bytes of a file; none of what is no file.

    Read without a buffer: the buffer of a file has the block size that its file system reports,
    and on striped storage that may be a gigabyte.

    Raises
    ------
    OSError
        It cannot be opened or read.
    """
    try:
        status = path.stat()
    except OSError:
        return b""
    if not stat.S_ISREG(status.st_mode):
        return b""
    return _head(path, status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)


@lru_cache(maxsize=16)
def _head(path: Path, *_: int) -> bytes:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.pread(fd, HEAD_NBYTES, 0)
    finally:
        os.close(fd)
