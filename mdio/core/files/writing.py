"""Files that are written by position, or copied; large writes of new ones past the page cache.

New pages of memory may cost more than the disk does, and what is written with O_DIRECT waits for
none and leaves the memory to others. The system wants whole blocks, at places and in memory that
begin on blocks, so bytes are copied, and a thread writes them; what is left at both ends goes
through the page cache, as all does where the file system refuses. Nothing is on disk for good
before fsync, here as elsewhere.

Runs of bytes are copied from file to file in the kernel (copy_file_range) if it can. Where bytes
are to be looked at, they go through the caller's buffer, which had best stay in the processor's
cache.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import shutil
import stat
import threading
import time
from collections import deque
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

from mdio.core.errors import SourceError
from mdio.core.files.marks import TELL_OUTPUTS
from mdio.core.kernels.checks import Buffer, buffer

if TYPE_CHECKING:
    from concurrent.futures import Future, ThreadPoolExecutor


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
        unwritten = [view for view in views if view.nbytes]
        while unwritten:  # the system writes at most 2 GiB at a time
            done = os.pwritev(fd, unwritten, offset)
            if not done:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            offset += done
            while unwritten and done >= unwritten[0].nbytes:
                done -= unwritten.pop(0).nbytes
            if unwritten:
                unwritten[0] = unwritten[0][done:]
    return offset


def write_whole(where: Path, *parts: Data, prefix: str, mode: int = 0o666) -> None:
    """Write a small file that is there whole or not at all, over one that is there already.

    Nothing is flushed: this is for what can be made again, and is checked when it is read.

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


Direct = bool | Literal["auto"]

BLOCK_NBYTES = 4096
ROOM_NBYTES, N_ROOMS = 2 << 20, 4
"""Most bytes in flight. More gain nothing, and closing would have to wait for them."""
LEAST_NBYTES = 256 << 10
"""Fewer bytes go through the page cache: a direct call waits for the disk."""
N_TRIED = 8
"""Writes by which a disk shows whether it is fast: the fastest of them counts."""
FAST_NBYTES_PER_S = 1e9
"""Such a disk delivers bytes about as fast as they are decoded."""
REFUSED = {errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS}
"""Errors of file systems without O_DIRECT, on opening or on the first write."""
_refused: set[int] = set()
"""File systems that took files opened in this way, and then refused what was written."""
_trials: dict[int, _Trial] = {}


class _Trial:
    """Whether a disk is fast enough for what goes by itself past the page cache."""

    def __init__(self) -> None:
        self._n_left = N_TRIED
        self._is_fast = False

    @property
    def goes_on(self) -> bool:
        """Whether the disk is fast, or may be."""
        return self._is_fast or self._n_left > 0

    def note(self, nbytes: int, seconds: float) -> None:
        """Take note of one write."""
        self._n_left -= 1
        self._is_fast |= nbytes >= FAST_NBYTES_PER_S * seconds


class WrittenFile:
    """A file that is written by position; whole blocks past the page cache, if that is wanted.

    Then a thread writes them, from copies, while the caller makes what comes next: all is in
    the file, and what went wrong is known, once `drain`, `fileno` or `close` has returned.

    `path`: the file. `flags`: of open(2). `direct`: whether to write past the page cache where the
    file system can; ``"auto"``: where it is fast as well, which the first writes find out.
    Attributes: `path`.
    Raises OSError: it cannot be opened.
    """

    def __init__(self, path: Path, flags: int = os.O_WRONLY, *, direct: Direct = False) -> None:
        self.path = path
        self._direct = -1
        self._thread: ThreadPoolExecutor | None = None
        self._under_way: deque[tuple[Future[None], memoryview]] = deque()
        self._trial: _Trial | None = None
        self._fd = os.open(path, flags | os.O_CLOEXEC, 0o666)
        if not direct or not hasattr(os, "O_DIRECT"):
            return
        disk = os.fstat(self._fd).st_dev
        if direct == "auto":
            self._trial = _trials.setdefault(disk, _Trial())
        if disk not in _refused and (self._trial is None or self._trial.goes_on):
            with suppress(OSError):  # the file is open for plain writes all the same
                self._direct = os.open(path, os.O_WRONLY | os.O_DIRECT | os.O_CLOEXEC)

    def fileno(self) -> int:
        """Return the descriptor that goes through the page cache, once all is in the file."""
        self.drain()
        return self._fd

    def write(self, offset: int, *parts: Data) -> int:
        """Write `parts` from `offset` on, as `write_all` does; raises OSError, of former ones too.

        Returns int: the offset behind them.
        """
        unwritten = deque(buffer(part) for part in parts)
        end = offset + sum(part.nbytes for part in unwritten)
        # What is little waits in line, too: the kernel would have it wait for what is under way.
        if not self._under_way and (self._direct < 0 or end - offset < LEAST_NBYTES):
            return write_all(self._fd, offset, *unwritten)
        first = min(end, -(-offset // BLOCK_NBYTES) * BLOCK_NBYTES)
        position = offset
        while position < end:
            stop = first if position < first else min(end, position + ROOM_NBYTES)
            self._write_behind(position, _take(unwritten, stop - position))
            position = stop
        return end

    def _write_behind(self, offset: int, parts: Sequence[memoryview]) -> None:
        """Copy `parts`, and have the thread write them."""
        from concurrent.futures import ThreadPoolExecutor  # not for those who only read

        while len(self._under_way) >= N_ROOMS:
            self._end_one()
        self._thread = self._thread or ThreadPoolExecutor(1, "mdio writes")
        room = _take_room()
        filled = 0
        for part in parts:
            room[filled : filled + part.nbytes] = part
            filled += part.nbytes
        future = self._thread.submit(self._write_room, offset, room[:filled])
        self._under_way.append((future, room))

    def _end_one(self) -> None:
        future, room = self._under_way.popleft()
        try:
            future.result()
        finally:
            if future.done():  # else Ctrl-C has come
                _rooms.free.append(room)

    def drain(self) -> None:
        """Wait until all is in the file; raises OSError."""
        while self._under_way:
            self._end_one()

    def _write_room(self, offset: int, data: memoryview) -> None:
        """Write whole blocks past the page cache, and what is less through it."""
        whole = 0 if offset % BLOCK_NBYTES else len(data) // BLOCK_NBYTES * BLOCK_NBYTES
        if whole and self._direct >= 0:
            self._write_blocks(offset, data[:whole])
            offset, data = offset + whole, data[whole:]
        write_all(self._fd, offset, data)

    def _write_blocks(self, offset: int, blocks: memoryview) -> None:
        try:
            begun = time.perf_counter()
            write_all(self._direct, offset, blocks)
        except OSError as error:
            if error.errno not in REFUSED:
                raise
            _refused.add(os.fstat(self._fd).st_dev)
            self._go_buffered()
            write_all(self._fd, offset, blocks)
        else:
            if self._trial is not None and len(blocks) >= LEAST_NBYTES:
                self._trial.note(len(blocks), time.perf_counter() - begun)
                if not self._trial.goes_on:
                    self._go_buffered()

    def _go_buffered(self) -> None:
        direct, self._direct = self._direct, -1
        os.close(direct)

    def close(self) -> None:
        """Close the file, once all is in it; harmless if it is closed. Raises OSError."""
        try:
            self.drain()
        finally:
            if self._thread is not None:  # before its descriptors become those of other files
                self._thread.shutdown(cancel_futures=True)
            for descriptor in (self._direct, self._fd):
                if descriptor >= 0:
                    os.close(descriptor)
            self._under_way.clear()
            self._direct = self._fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        with suppress(OSError) if kind is not None else nullcontext():  # the first error counts
            self.close()


class _Rooms(threading.local):
    """Memory to write from, which files of a thread take and leave."""

    def __init__(self) -> None:
        self.free: list[memoryview] = []


_rooms = _Rooms()


def _take_room() -> memoryview:
    """Return memory that begins on a page, since the system wants that.

    Private: by default a forked process would share it with its parent.
    """
    if _rooms.free:
        return _rooms.free.pop()
    return memoryview(mmap.mmap(-1, ROOM_NBYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))


def _take(unwritten: deque[memoryview], nbytes: int) -> Sequence[memoryview]:
    """Take the first `nbytes` bytes from `left`."""
    views = []
    while nbytes:
        part = unwritten.popleft()
        if part.nbytes > nbytes:
            unwritten.appendleft(part[nbytes:])
            part = part[:nbytes]
        views.append(part)
        nbytes -= part.nbytes
    return views


def free_memory() -> int:
    """Return bytes of memory that could hold cached files; 0 where the system does not say."""
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    return 0


INDEX_ENDING = ".mdio-index"
MIN_BUFFER_NBYTES, MAX_BUFFER_NBYTES = 64 << 10, 4 << 20
"""Small enough for the cache of one core, unless the file system wants larger writes (NFS and
Lustre say so in st_blksize). Where it does not, writes of 128 KiB and more took up to five times as
long in the kernel: the page cache then asks for larger blocks of memory."""
CANNOT = {errno.ENOSYS, errno.EXDEV, errno.EINVAL, errno.EOPNOTSUPP, errno.EPERM, errno.EBADF}
"""What copy_file_range says where it does not work: old kernels, two file systems, network file
systems, filters of containers."""


def _buffer(target: int, nbytes: int) -> memoryview:
    size = min(max(os.fstat(target).st_blksize, MIN_BUFFER_NBYTES), MAX_BUFFER_NBYTES)
    return memoryview(bytearray(max(1, min(size, nbytes))))


def _read(source: int, buffer: memoryview, offset: int) -> int:
    """Fill (the beginning of) `buffer`; an end or an error is the source's fault, and says so."""
    try:
        n_read = os.preadv(source, [buffer], offset)
    except OSError as error:
        raise SourceError(f"byte {offset} cannot be read ({error.strerror})") from error
    if n_read == 0:
        raise SourceError(
            f"it ends at byte {offset}, {len(buffer)} bytes or more before what was to be copied; "
            "it has been cut since it was opened: check it and begin again"
        )
    return n_read


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


def write_sliced(target: int, data: memoryview, offset: int) -> None:
    """Write all of `data` at `offset`, in slices of the size that the file system likes best."""
    step = min(max(os.fstat(target).st_blksize, MIN_BUFFER_NBYTES), MAX_BUFFER_NBYTES)
    for first in range(0, len(data), step):
        write_all(target, offset + first, data[first : first + step])


def copy_bytes(source: int, offset: int, nbytes: int, target: int, target_offset: int) -> None:
    """Copy a run of bytes, in the kernel where it can.

    `source`, `target`: open files. `offset`, `nbytes`: what to copy of `source`. `target_offset`:
    where to put it in `target`.
    Raises SourceError: `source` ends too early or cannot be read; the message does not name it.
    OSError: `target` cannot be written.
    """
    done = 0
    in_kernel = hasattr(os, "copy_file_range")
    buffer: memoryview | None = None
    while done < nbytes:
        if in_kernel:
            try:
                n_copied = os.copy_file_range(
                    source, target, nbytes - done, offset + done, target_offset + done
                )
            except OSError as error:
                if error.errno not in CANNOT:
                    raise
                in_kernel = False
                continue
            if n_copied == 0:  # the end, or a file system that says nothing of what it cannot do
                in_kernel = False
        else:
            buffer = buffer or _buffer(target, nbytes)
            n_copied = _read(source, buffer[: nbytes - done], offset + done)
            write_all(target, target_offset + done, buffer[:n_copied])
        done += n_copied
