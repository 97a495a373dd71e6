"""Writing by position: all of what is given, at its place, however many calls that takes."""

from __future__ import annotations

import ctypes
import errno
import os
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from mdio.core.kernels.checks import Buffer, buffer

Data = Buffer
"""C-contiguous."""

MAX_BUFFERS = 512
"""Buffers that one call writes; the system allows 1024."""
KEEP_SIZE = 1
"""Flag of fallocate(2)."""


def write_all(fd: int, offset: int, *parts: Data) -> int:
    """Write `parts`, one after the other, from `offset` on.

    Returns int: the offset behind them.
    Raises OSError: as the system has it.
    """
    for first in range(0, len(parts), MAX_BUFFERS):
        views = [buffer(part) for part in parts[first : first + MAX_BUFFERS]]
        left = [view for view in views if view.nbytes]
        while left:  # the system writes at most 2 GiB at a time
            done = os.pwritev(fd, left, offset)
            if not done:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            offset += done
            while left and done >= left[0].nbytes:
                done -= left.pop(0).nbytes
            if left:
                left[0] = left[0][done:]
    return offset


def write_whole(where: Path, *parts: Data, prefix: str, mode: int = 0o666) -> None:
    """Write a small file that is there whole or not at all, over one that is there already.

    Nothing is flushed: this is for what can be made again, and whoever reads it checks it.

    `where`: the file; its folder is there. `parts`: what is written, one after the other. `prefix`:
    how the name begins under which it is written, in the same folder. `mode`: who may read it, as
    far as the user's umask lets them.
    Raises OSError: as the system has it; FileExistsError for what is no file.
    """
    if where.exists() and not where.is_file():  # a pipe or a device that somebody put there
        raise FileExistsError(where)
    temporary = where.with_name(f"{prefix}{os.urandom(8).hex()}")
    try:
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        try:
            write_all(fd, 0, *parts)
        finally:
            os.close(fd)
        temporary.replace(where)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise


@cache
def _fallocate() -> Any:
    try:
        function = ctypes.CDLL(None, use_errno=True).fallocate64
    except (OSError, AttributeError):  # another C library
        return None
    function.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
    return function


def allocate(fd: int, nbytes: int) -> bool:
    """Give the first `nbytes` bytes of a file their places on disk, where the system can.

    Into such a file several processes write at the same time; into one of holes, in turn.
    `os.posix_fallocate` would write zeros where the system cannot.

    Returns bool: whether they have places; writing does not need it.
    """
    function = _fallocate()
    return function is not None and nbytes > 0 and function(fd, KEEP_SIZE, 0, nbytes) == 0


def flush(path: Path) -> None:
    """Flush a file, or the names in a folder, to the disk."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # no fsync of folders here
            error.filename = str(path)
            raise
    finally:
        os.close(fd)
