"""Writing files by position, on request past the page cache, and copying runs of bytes.

Getting new pages of memory may take longer than the disk does. A write with O_DIRECT needs none,
and leaves the memory to others. It takes whole blocks only, at offsets and addresses that are
multiples of the block size: so bytes are copied into aligned buffers, which a thread writes. The
rest at both ends goes through the page cache, as does everything where the file system has no
O_DIRECT. Neither way is anything safe from a power cut before fsync.

Runs of bytes are copied from file to file in the kernel (copy_file_range) where it can do that,
elsewhere through a buffer that fits into the processor's cache.
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
from contextlib import ExitStack, nullcontext, suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NoReturn, Self

from mdio.core.errors import SourceError
from mdio.core.files.checks import OUTPUT_MARKERS
from mdio.core.kernels.checks import Buffer, buffer
from mdio.core.stalls import pending_calls

if TYPE_CHECKING:
    from concurrent.futures import Future, ThreadPoolExecutor


MAX_BUFFERS = 512
"""Buffers that one call writes; the system allows 1024."""
KEEP_SIZE = 1
"""Flag of fallocate(2)."""


def write_all(fd: int, offset: int, *parts: Buffer) -> int:
    """Write `parts`, one after the other, from `offset` on; return the offset of the end."""
    for first in range(0, len(parts), MAX_BUFFERS):
        views = [buffer(part) for part in parts[first : first + MAX_BUFFERS]]
        unwritten = [view for view in views if view.nbytes]
        while unwritten:  # the system writes at most 2 GiB at a time
            pending_calls.begin("writing", fd)
            try:
                n_written = os.pwritev(fd, unwritten, offset)
            finally:
                pending_calls.end()
            if not n_written:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            offset += n_written
            while unwritten and n_written >= unwritten[0].nbytes:
                n_written -= unwritten.pop(0).nbytes
            if unwritten:
                unwritten[0] = unwritten[0][n_written:]
    return offset


def write_atomically(path: Path, *parts: Buffer, prefix: str, mode: int = 0o666) -> None:
    """Create or replace a small file, so that it is there complete or not at all.

    Nothing is flushed: this is for files that can be made again, and are checked when read.
    `prefix`: of the temporary name in the same folder. `mode`: mode bits before the umask.
    Raises OSError: as the system does; FileExistsError if the path is not that of a file.
    """
    if path.exists() and not path.is_file():  # a pipe or a device that somebody put there
        raise FileExistsError(path)
    temporary = path.with_name(f"{prefix}{os.urandom(8).hex()}")
    try:
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        try:
            write_all(fd, 0, *parts)
        finally:
            os.close(fd)
        temporary.replace(path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise


@cache
def libc_function(name: str, *argument_types: Any) -> Any:
    """Return a function of the C library that sets errno; None if there is none of this name."""
    try:
        function = getattr(ctypes.CDLL(None, use_errno=True), name)
    except (OSError, AttributeError):
        return None
    function.argtypes = argument_types
    return function


def allocate(fd: int, nbytes: int) -> bool:
    """Allocate disk space for the first `nbytes` of a file; return whether the file system can.

    Several processes can write into allocated space at the same time, but only in turn into holes.
    `os.posix_fallocate` would write zeros where the file system cannot allocate.
    """
    int64 = ctypes.c_int64
    function = libc_function("fallocate64", ctypes.c_int, ctypes.c_int, int64, int64)
    return function is not None and nbytes > 0 and function(fd, KEEP_SIZE, 0, nbytes) == 0


def flush(path: Path) -> None:
    """Flush a file, or the names in a folder, to the disk; raises OSError."""
    fd = os.open(path, os.O_RDONLY)
    pending_calls.begin("flushing", path)
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # no fsync of folders here
            error.filename = str(path)
            raise
    finally:
        pending_calls.end()
        os.close(fd)


Direct = bool | Literal["auto"]

BLOCK_NBYTES = 4096
BUFFER_NBYTES, N_BUFFERS = 2 << 20, 4
"""Size and number of the buffers in flight. More gain nothing, and closing has to wait for them."""
MIN_DIRECT_NBYTES = 256 << 10
"""Shorter writes go through the page cache: a direct one waits for the disk."""
N_TRIAL_WRITES = 8
"""Writes that show whether a disk is fast: the fastest of them counts."""
FAST_NBYTES_PER_S = 1e9
"""The rate of a fast disk, which is about that of decoding."""
DIRECT_UNSUPPORTED = {errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS}
"""Errors of file systems without O_DIRECT, on opening or on the first write."""
_devices_without_direct: set[int] = set()
"""Devices on which files could be opened with O_DIRECT, but not written."""
_speed_trials: dict[int, _SpeedTrial] = {}
"""The trial of each device."""


class _SpeedTrial:
    """Measures whether a disk is fast enough for direct writes, for ``"auto"``."""

    def __init__(self) -> None:
        self._n_left = N_TRIAL_WRITES
        self._is_fast = False

    @property
    def may_be_fast(self) -> bool:
        """Whether the disk is fast, or not yet known to be slow."""
        return self._is_fast or self._n_left > 0

    def record(self, nbytes: int, seconds: float) -> None:
        """Record one write."""
        self._n_left -= 1
        self._is_fast |= nbytes >= FAST_NBYTES_PER_S * seconds


class WrittenFile:
    """A file that is written by position, past the page cache if that is wanted.

    Then a thread writes copies of the bytes while the caller prepares the next ones: all bytes are
    in the file, and errors are raised, by the end of `drain`, `fileno` or `close`.

    `path`: the file. `flags`: of open(2). `direct`: whether to write past the page cache where the
    file system can; ``"auto"``: only if the disk is fast as well, which the first writes show.
    Attributes: `path`.
    Raises OSError: it cannot be opened.
    """

    def __init__(self, path: Path, flags: int = os.O_WRONLY, *, direct: Direct = False) -> None:
        self.path = path
        self._direct_fd = -1
        self._thread: ThreadPoolExecutor | None = None
        self._in_flight: deque[tuple[Future[None], memoryview]] = deque()
        self._trial: _SpeedTrial | None = None
        self._fd = os.open(path, flags | os.O_CLOEXEC, 0o666)
        if not direct or not hasattr(os, "O_DIRECT"):
            return
        disk = os.fstat(self._fd).st_dev
        if direct == "auto":
            self._trial = _speed_trials.setdefault(disk, _SpeedTrial())
        if disk not in _devices_without_direct and (self._trial is None or self._trial.may_be_fast):
            with suppress(OSError):  # the file is open for plain writes all the same
                self._direct_fd = os.open(path, os.O_WRONLY | os.O_DIRECT | os.O_CLOEXEC)

    def __reduce__(self) -> NoReturn:
        """Refuse to be pickled: a descriptor's number names another file in another process."""
        raise TypeError(f"{self.path}: a file open for writing cannot be pickled")

    def fileno(self) -> int:
        """Wait until all is in the file; return the descriptor that uses the page cache."""
        self.drain()
        return self._fd

    def write(self, offset: int, *parts: Buffer) -> int:
        """Write `parts` from `offset` on; return the offset of the end.

        Raises OSError: this write, or an earlier one that was in flight, has failed.
        """
        unwritten = deque(buffer(part) for part in parts)
        end = offset + sum(part.nbytes for part in unwritten)
        # Short writes queue up, too: the kernel would make them wait for those in flight.
        if not self._in_flight and (self._direct_fd < 0 or end - offset < MIN_DIRECT_NBYTES):
            return write_all(self._fd, offset, *unwritten)
        block_start = min(end, -(-offset // BLOCK_NBYTES) * BLOCK_NBYTES)
        position = offset
        while position < end:
            stop = block_start if position < block_start else min(end, position + BUFFER_NBYTES)
            self._write_behind(position, _split_off(unwritten, stop - position))
            position = stop
        return end

    def _write_behind(self, offset: int, parts: Sequence[memoryview]) -> None:
        """Copy `parts`, and have the thread write them."""
        from concurrent.futures import ThreadPoolExecutor  # not for those who only read

        while len(self._in_flight) >= N_BUFFERS:
            self._finish_oldest()
        self._thread = self._thread or ThreadPoolExecutor(1, "mdio writes")
        copy = _aligned_buffer()
        filled = 0
        for part in parts:
            copy[filled : filled + part.nbytes] = part
            filled += part.nbytes
        future = self._thread.submit(self._write_copy, offset, copy[:filled])
        self._in_flight.append((future, copy))

    def _finish_oldest(self) -> None:
        """Wait for the oldest write in flight; raises its OSError."""
        future, copy = self._in_flight.popleft()
        try:
            future.result()
        finally:
            if future.done():  # else Ctrl-C interrupted the wait
                _buffers.free.append(copy)

    def drain(self) -> None:
        """Wait until all is in the file; raises OSError."""
        while self._in_flight:
            self._finish_oldest()

    def _write_copy(self, offset: int, data: memoryview) -> None:
        """Write whole blocks past the page cache, and the rest through it."""
        nbytes = 0 if offset % BLOCK_NBYTES else len(data) // BLOCK_NBYTES * BLOCK_NBYTES
        if nbytes and self._direct_fd >= 0:
            self._write_blocks(offset, data[:nbytes])
            offset, data = offset + nbytes, data[nbytes:]
        write_all(self._fd, offset, data)

    def _write_blocks(self, offset: int, blocks: memoryview) -> None:
        try:
            began_s = time.perf_counter()
            write_all(self._direct_fd, offset, blocks)
        except OSError as error:
            if error.errno not in DIRECT_UNSUPPORTED:
                raise
            _devices_without_direct.add(os.fstat(self._fd).st_dev)
            self._close_direct()
            write_all(self._fd, offset, blocks)
        else:
            if self._trial is not None and len(blocks) >= MIN_DIRECT_NBYTES:
                self._trial.record(len(blocks), time.perf_counter() - began_s)
                if not self._trial.may_be_fast:
                    self._close_direct()

    def _close_direct(self) -> None:
        """Write through the page cache from now on."""
        descriptor, self._direct_fd = self._direct_fd, -1
        os.close(descriptor)

    def close(self) -> None:
        """Wait until all is in the file, and close it; may be called again. Raises OSError."""
        try:
            self.drain()
        finally:
            if self._thread is not None:  # before its descriptors become those of other files
                self._thread.shutdown(cancel_futures=True)
            self._in_flight.clear()
            with ExitStack() as closing:  # of both, where a lost mount makes the first one fail
                for descriptor in (self._direct_fd, self._fd):
                    if descriptor >= 0:
                        closing.callback(os.close, descriptor)
                self._direct_fd = self._fd = -1  # they may be those of other files from now on

    def __enter__(self) -> Self:
        return self

    def __exit__(self, error_type: type[BaseException] | None, *_: object) -> None:
        # An error in closing must not replace one in the block.
        with nullcontext() if error_type is None else suppress(OSError):
            self.close()


class _Buffers(threading.local):
    """Aligned buffers of a thread, which its files reuse."""

    def __init__(self) -> None:
        self.free: list[memoryview] = []


_buffers = _Buffers()


def _aligned_buffer() -> memoryview:
    """Return a buffer that begins on a page, as O_DIRECT requires.

    Its mapping is private: by default a forked process would share it with its parent.
    """
    if _buffers.free:
        return _buffers.free.pop()
    return memoryview(mmap.mmap(-1, BUFFER_NBYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))


def _split_off(unwritten: deque[memoryview], nbytes: int) -> Sequence[memoryview]:
    """Remove and return the first `nbytes` bytes of `unwritten`."""
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
    """Return the available memory in bytes; 0 where the system does not say."""
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    return 0


INDEX_ENDING = ".mdio-index"
"""Ending of the name of a frame index (`mdio.core.files.index`)."""
MIN_SLICE_NBYTES, MAX_SLICE_NBYTES = 64 << 10, 4 << 20
"""Limits of one write or copy: small enough for the cache of one core, unless the file system
prefers larger writes (NFS and Lustre say so in st_blksize). Elsewhere, writes of 128 KiB and more
took up to five times as long in the kernel: the page cache then asks for larger runs of memory."""


def _preferred_nbytes(target: int) -> int:
    """Return the size of writes that the file system of an open file prefers, within limits."""
    return min(max(os.fstat(target).st_blksize, MIN_SLICE_NBYTES), MAX_SLICE_NBYTES)


def _read_source(source: int, buffer: memoryview, offset: int) -> int:
    """Fill the beginning of `buffer`; return how many bytes were read, or raise SourceError."""
    try:
        n_read = os.preadv(source, [buffer], offset)
    except OSError as error:
        raise SourceError(f"byte {offset} cannot be read ({error.strerror})") from error
    if n_read == 0:
        raise SourceError(
            f"it ends at byte {offset}, at least {len(buffer)} bytes too early: it has been cut "
            "since it was opened; check it and start again"
        )
    return n_read


def remove(path: Path) -> None:
    """Remove a file or a folder, if it exists, and the frame index of a temporary file.

    The files that mark a folder as an output go last, so that one removed in part is still known.
    """
    if path.is_dir() and not path.is_symlink():
        with suppress(OSError):
            for child in path.iterdir():
                if child.is_dir() and not child.is_symlink():
                    shutil.rmtree(child, ignore_errors=True)
                elif child.name not in OUTPUT_MARKERS:
                    child.unlink()
            if any(os.path.lexists(path / name) for name in OUTPUT_MARKERS):
                flush(path)  # or a power cut may keep the rest without them
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
    """Write all of `data` at `offset`, in slices of the size that the file system prefers."""
    step = _preferred_nbytes(target)
    for first in range(0, len(data), step):
        write_all(target, offset + first, data[first : first + step])


def copy_bytes(source: int, offset: int, nbytes: int, target: int, target_offset: int) -> None:
    """Copy `nbytes` bytes between open files, in the kernel where it can do that.

    Raises SourceError: `source` ends too early or cannot be read; the message does not name it.
    OSError: `target` cannot be written.
    """
    n_done = 0
    in_kernel = hasattr(os, "copy_file_range")
    buffer: memoryview | None = None
    while n_done < nbytes:
        if in_kernel:
            try:
                n_copied = os.copy_file_range(
                    source, target, nbytes - n_done, offset + n_done, target_offset + n_done
                )
            except OSError:  # an old kernel, two file systems; others come again, of either file
                in_kernel = False
                continue
            if n_copied == 0:  # the end, or a file system that fails without an error
                in_kernel = False
        else:
            if buffer is None:
                buffer = memoryview(bytearray(max(1, min(_preferred_nbytes(target), nbytes))))
            n_copied = _read_source(source, buffer[: nbytes - n_done], offset + n_done)
            write_all(target, target_offset + n_done, buffer[:n_copied])
        n_done += n_copied
