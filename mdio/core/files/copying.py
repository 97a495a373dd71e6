"""Copying runs of bytes from file to file: in the kernel (copy_file_range) if it can.

Where bytes are to be looked at, they go through the caller's buffer, which had best stay in the
processor's cache. Files that are there as a whole are linked and removed here too.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
from contextlib import suppress
from pathlib import Path

from mdio.core.errors import SourceError
from mdio.core.files.direct import write_all
from mdio.core.files.marks import TELL_OUTPUTS

INDEX_ENDING = ".mdio-index"
MIN_BUFFER_NBYTES, MAX_BUFFER_NBYTES = 64 << 10, 4 << 20
"""Small enough for the cache of one core, unless the file system wants larger writes (NFS and
Lustre say so in st_blksize). Where it does not, writes of 128 KiB and more took up to five times as
long in the kernel: the page cache then asks for larger blocks of memory."""
CANNOT = {errno.ENOSYS, errno.EXDEV, errno.EINVAL, errno.EOPNOTSUPP, errno.EPERM, errno.EBADF}
"""What copy_file_range says where it does not work: old kernels, two file systems, network file
systems, filters of containers."""


def _buffer(target: int, nbytes: int) -> memoryview:
    wanted = min(max(os.fstat(target).st_blksize, MIN_BUFFER_NBYTES), MAX_BUFFER_NBYTES)
    return memoryview(bytearray(max(1, min(wanted, nbytes))))


def _read(source: int, buffer: memoryview, offset: int) -> int:
    """Fill (the beginning of) `buffer`; an end or an error is the source's fault, and says so."""
    try:
        got = os.preadv(source, [buffer], offset)
    except OSError as error:
        raise SourceError(f"byte {offset} cannot be read ({error.strerror})") from error
    if got == 0:
        raise SourceError(
            f"it ends at byte {offset}, {len(buffer)} bytes or more before what was to be copied; "
            "it has been cut since it was opened: check it and begin again"
        )
    return got


def remove(path: Path) -> None:
    """Remove a file or a folder, or nothing; and the frame index of a temporary file.

    What tells of a folder that it is an output goes last: of one that was half removed, when the
    process was killed, it can still be seen.
    """
    if path.is_dir() and not path.is_symlink():
        with suppress(OSError):
            for child in path.iterdir():
                if child.is_dir() and not child.is_symlink():
                    shutil.rmtree(child, ignore_errors=True)
                elif child.name not in TELL_OUTPUTS:
                    child.unlink()
        shutil.rmtree(path, ignore_errors=True)
        if path.exists():  # its folders may be read-only
            for folder, *_ in os.walk(path):
                with suppress(OSError):
                    Path(folder).chmod(stat.S_IRWXU)
            shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
        path.with_name(f".{path.name}{INDEX_ENDING}").unlink(missing_ok=True)


def write_sliced(target: int, data: memoryview, at: int) -> None:
    """Write all of `data` at `at`, in slices of the size that the file system likes best."""
    step = min(max(os.fstat(target).st_blksize, MIN_BUFFER_NBYTES), MAX_BUFFER_NBYTES)
    for first in range(0, len(data), step):
        write_all(target, at + first, data[first : first + step])


def copy_bytes(source: int, offset: int, nbytes: int, target: int, at: int) -> None:
    """Copy a run of bytes, in the kernel where it can.

    `source`, `target`: open files. `offset`, `nbytes`: what to copy of `source`. `at`: where to put
    it in `target`.
    Raises SourceError: `source` ends too early or cannot be read; the message does not name it.
    OSError: `target` cannot be written.
    """
    done = 0
    in_kernel = hasattr(os, "copy_file_range")
    buffer: memoryview | None = None
    while done < nbytes:
        if in_kernel:
            try:
                got = os.copy_file_range(source, target, nbytes - done, offset + done, at + done)
            except OSError as error:
                if error.errno not in CANNOT:
                    raise
                in_kernel = False
                continue
            if got == 0:  # the end, or a file system that says nothing of what it cannot do
                in_kernel = False
        else:
            buffer = buffer or _buffer(target, nbytes)
            got = _read(source, buffer[: nbytes - done], offset + done)
            write_all(target, at + done, buffer[:got])
        done += got
