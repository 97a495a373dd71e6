"""The floor for writing: all of what is given, at its place, however many calls that takes.

Large writes of new files may go past the page cache (O_DIRECT), where the file system takes them:
new pages of memory may cost more than the disk does, and what is written this way waits for none
and leaves the memory to others. The system wants whole blocks, at places and in memory that begin
on blocks, so bytes go through a buffer that does; what is left at both ends goes through the page
cache. Nothing is on disk for good before fsync, here as elsewhere.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import threading
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, Self

from mdio.core.kernels.checks import Buffer, buffer

Data = Buffer
"""C-contiguous."""

MAX_BUFFERS = 512
"""Buffers that one call writes; the system allows 1024."""
BLOCK_NBYTES = 4096
ROOM_NBYTES = 4 << 20
LEAST_NBYTES = 256 << 10
"""Fewer bytes in whole blocks go through the page cache: a direct call waits for the disk."""
REFUSED = {errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS}
"""What file systems say that cannot, when a file is opened or only when it is written."""
KEEP_SIZE = 1
"""Flag of fallocate(2)."""

_refused: set[int] = set()
"""File systems that took files opened in this way, and then refused what was written."""
_rooms = threading.local()


def write_whole(where: Path, *parts: Data, prefix: str) -> None:
    """Write a small file that is there whole or not at all, over one that is there already.

    Nothing is flushed: this is for what can be made again, and whoever reads it checks it.

    `where`: the file; its folder is there. `parts`: what is written, one after the other. `prefix`:
    how the name begins under which it is written, in the same folder.
    Raises OSError: as the system has it; FileExistsError for what is no file.
    """
    if where.exists() and not where.is_file():  # a pipe or a device that somebody put there
        raise FileExistsError(where)
    temporary = where.with_name(f"{prefix}{os.urandom(8).hex()}")
    try:
        # Who may read it is for the user's umask to say.
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        try:
            write_all(fd, 0, *parts)
        finally:
            os.close(fd)
        temporary.replace(where)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise


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


class WrittenFile:
    """A file that is written by position; whole blocks past the page cache, if that is wanted.

    `path`: the file. `flags`: of open(2). `direct`: whether to write past the page cache where the
    file system can.
    Raises OSError: it cannot be opened.
    """

    def __init__(self, path: Path, flags: int = os.O_WRONLY, *, direct: bool = False) -> None:
        self._direct = -1
        self._fd = os.open(path, flags | os.O_CLOEXEC, 0o666)
        if direct and hasattr(os, "O_DIRECT") and os.fstat(self._fd).st_dev not in _refused:
            with suppress(OSError):  # whatever it is, the file is open for plain writes
                self._direct = os.open(path, os.O_WRONLY | os.O_DIRECT | os.O_CLOEXEC)

    def fileno(self) -> int:
        """Return the descriptor that goes through the page cache."""
        return self._fd

    def write(self, offset: int, *parts: Data) -> int:
        """Write `parts` from `offset` on, as `write_all` does; raises OSError."""
        left = deque(buffer(part) for part in parts)
        first = -(-offset // BLOCK_NBYTES) * BLOCK_NBYTES
        last = (offset + sum(part.nbytes for part in left)) // BLOCK_NBYTES * BLOCK_NBYTES
        if self._direct < 0 or last - first < LEAST_NBYTES:
            return write_all(self._fd, offset, *left)
        room = _room()
        write_all(self._fd, offset, *_take(left, first - offset))
        for at in range(first, last, len(room)):
            filled = 0
            for part in _take(left, min(len(room), last - at)):
                room[filled : filled + part.nbytes] = part
                filled += part.nbytes
            self._write_blocks(at, room[:filled])
        return write_all(self._fd, last, *left)

    def _write_blocks(self, offset: int, blocks: memoryview) -> None:
        if self._direct >= 0:
            try:
                write_all(self._direct, offset, blocks)
            except OSError as error:
                if error.errno not in REFUSED:
                    raise
                _refused.add(os.fstat(self._fd).st_dev)
                direct, self._direct = self._direct, -1
                os.close(direct)
            else:
                return
        write_all(self._fd, offset, blocks)

    def close(self) -> None:
        """Close the file; harmless if it is closed."""
        for descriptor in (self._direct, self._fd):
            if descriptor >= 0:
                os.close(descriptor)
        self._direct = self._fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _room() -> memoryview:
    """Return memory that begins on a page, the same for all files of a thread.

    Private: by default a forked process would share it with its parent.
    """
    if not hasattr(_rooms, "room"):
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        _rooms.room = memoryview(mmap.mmap(-1, ROOM_NBYTES, flags=flags))
    room: memoryview = _rooms.room
    return room


def _take(left: deque[memoryview], nbytes: int) -> Sequence[memoryview]:
    """Take the first `nbytes` bytes from `left`."""
    taken = []
    while nbytes:
        part = left.popleft()
        if part.nbytes > nbytes:
            left.appendleft(part[nbytes:])
            part = part[:nbytes]
        taken.append(part)
        nbytes -= part.nbytes
    return taken


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
