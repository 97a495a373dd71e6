"""Files are opened only if they are regular, and records obeyed only if they are the user's own.

A pipe or a device under the name of a file would be waited for, or read without an end. A record
that says what to remove, to move or to believe could have been put there by anyone who may write
into the folder.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

NOT_REGULAR = "neither a file nor a folder: a pipe, a socket or a device"
RECORD_NBYTES = 256 << 20
"""No manifest, table or note is longer."""


def open_regular(path: Path, flags: int = os.O_RDONLY, mode: int = 0o666) -> int:
    """Return a descriptor of a file; `flags` and `mode` as `os.open` has them.

    Raises OSError: it cannot be opened, or is no regular file.
    """
    try:
        # Opening a pipe would wait for a writer; files do not care.
        fd = os.open(path, flags | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY, mode)
    except OSError as error:
        if error.errno == errno.ENXIO:  # a pipe that nobody reads, a socket
            raise _not_regular(path) from None
        if error.errno != errno.EWOULDBLOCK or not stat.S_ISREG(path.stat().st_mode):
            raise
        fd = os.open(path, flags | os.O_CLOEXEC, mode)  # a file server has lent it to somebody
    kind = os.fstat(fd).st_mode
    if stat.S_ISREG(kind):
        return fd
    os.close(fd)
    if stat.S_ISDIR(kind):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    raise _not_regular(path)


def check_regular(path: Path) -> None:
    """Raise OSError for what is there and neither a file nor a folder: libraries would wait."""
    kind = path.stat().st_mode
    if not stat.S_ISREG(kind) and not stat.S_ISDIR(kind):
        raise _not_regular(path)


def read_regular(path: Path, most: int = RECORD_NBYTES) -> bytes:
    """Return what is in a file, or an object of a store.

    Raises OSError: it cannot be read, is no regular file, or is longer than `most` bytes.
    """
    if type(path).read_bytes is not Path.read_bytes:  # an object
        return path.read_bytes()
    with open(open_regular(path), "rb") as file:
        nbytes = os.fstat(file.fileno()).st_size
        if nbytes > most:
            raise OSError(
                errno.EFBIG, f"{nbytes:,} bytes, where at most {most:,} were expected", str(path)
            )
        return file.read(most)


def first_bytes(path: Path, nbytes: int) -> bytes:
    """Return how a file, or an object of a store, begins.

    Raises OSError: it cannot be read, or is no regular file.
    """
    is_object = type(path).open is not Path.open
    with path.open("rb") if is_object else open(open_regular(path), "rb") as file:
        return file.read(nbytes)


def is_own(status: os.stat_result, folder: Path) -> bool:
    """Return whether what lies in `folder`, of this state, belongs to this user, or to root."""
    return status.st_uid in (os.geteuid(), 0) or status.st_uid == _as_made(folder, status.st_dev)


def is_own_record(status: os.stat_result, folder: Path) -> bool:
    """Return whether a file may be obeyed: regular, the user's own, under one name only."""
    return stat.S_ISREG(status.st_mode) and status.st_nlink == 1 and is_own(status, folder)


@lru_cache(maxsize=16)
def _as_made(folder: Path, _device: int) -> int | None:
    """Return to whom new files belong; file servers may give them to another user."""
    import tempfile  # seldom asked for, and it takes long

    with suppress(OSError), tempfile.TemporaryFile(dir=folder) as file:
        return os.fstat(file.fileno()).st_uid
    return None


def _not_regular(path: Path) -> OSError:
    return OSError(errno.EINVAL, NOT_REGULAR, str(path))
