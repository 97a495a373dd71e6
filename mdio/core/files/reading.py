"""The floor for reading: ranges of bytes in, buffers out.

Whatever mdio reads by position it reads through an `OpenFile`, so that there is one loop for reads
that come in pieces, and one wording for what goes wrong. Files are read with preadv, never mapped
into memory: a file that is cut while it is read then gives an error and not a signal, and a forked
process shares no file position with its parent.

Handles that are kept open, the ones used last, within what the system allows a process.
"""

from __future__ import annotations

import os
import resource
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any, Generic, Protocol, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from mdio.core.errors import CorruptLayoutError, MdioError, SourceError
from mdio.core.files.remote.objects import RemoteObject
from mdio.core.files.store import MOUNTS, mounts, store_at
from mdio.core.kernels import read_rows


class Closing:
    """Calls `close` at the end of a ``with``."""

    def close(self) -> None:
        """Let go of everything."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


Buffer = NDArray[Any] | memoryview
"""C-contiguous and writable."""

MAX_BUFFERS = 1000
"""Buffers that one call fills; the system allows 1024."""


# How the first long read of a file begins, for the sake of all later ones. Linux reads ahead of a
# program that goes through a file, in pieces that grow, and keeps the larger pieces in larger
# runs of memory (folios, from ext4 and XFS). But what a program asks for with its very first call
# it gets page by page, however much that is: a file whose first megabytes are read at once lies
# scattered in memory, and copying from there takes twice as long ever after, also for other
# programs. So the first calls are short (``mm/readahead.c`` of Linux 6: the first window has
# order 0, each that follows a higher one). Nothing but that depends on it, and where files come
# over a network (Lustre, NFS) every call waits for a server: there they are left as they are.
WITH_FOLIOS = {"ext4", "xfs"}
"""File systems on disks of the machine itself."""

RAMP_NBYTES = (64 << 10, 64 << 10, 128 << 10, 256 << 10)
"""Bytes of the first calls, one after the other."""
LONG_NBYTES = sum(RAMP_NBYTES)
"""Reads of fewer bytes are left as they are."""


@cache
def devices_with_folios(mountinfo: str = MOUNTS) -> frozenset[int]:
    """Return the devices (``st_dev``) whose files are kept in folios.

    `mountinfo`: the kernel's table of mounts (proc(5)).
    """
    return frozenset(device for device, _, kind in mounts(mountinfo) if kind in WITH_FOLIOS)


def read_with_ramp_up(fd: int, target: memoryview, offset: int) -> int:
    """Begin to fill `target` with the bytes of a file from `offset` on.

    `fd`: of which nothing as long has been read before. `target`: bytes, writable. `offset`: where
    in the file they are.
    Returns int: how many bytes of `target` have been read: none if it is short or the file on
    another file system, fewer than intended at the end of the file. The caller reads the rest.
    Raises OSError: as the system has it.
    """
    if len(target) < LONG_NBYTES or os.fstat(fd).st_dev not in devices_with_folios():
        return 0
    done = 0
    for nbytes in RAMP_NBYTES:
        n_read = os.preadv(fd, [target[done : done + nbytes]], offset + done)
        done += n_read
        if n_read < nbytes:
            break
    return done


class Ahead(Protocol):
    """Bytes of files that have been asked for (`mdio.core.files.in_flight`)."""

    def read_into(self, file: OpenFile, buffers: Sequence[Buffer], offset: int) -> int:
        """Fill the beginning of `buffers`, and return how many bytes that was; 0 without any."""


class _Reads(threading.local):
    """Counters of a thread's reads, and the cache that it reads from first."""

    cached: Ahead | None = None
    """Asked before any file is: a cache of what files hold."""
    nbytes_source = 0
    """Bytes that came from files by position."""
    nbytes_cache = 0
    """Bytes that were on this node already."""


reads = _Reads()


@contextmanager
def uncounted() -> Iterator[None]:
    """Count no bytes: what kind of file it is is asked of any, topologies too."""
    before = reads.nbytes_source
    try:
        yield
    finally:
        reads.nbytes_source = before


@contextmanager
def reading_from(cached: Ahead | None) -> Iterator[None]:
    """Let this thread look into `cached` before it reads from files; None = read from files."""
    before, reads.cached = reads.cached, cached
    try:
        yield
    finally:
        reads.cached = before


class OpenFile(Closing):
    """A file, opened for reading by position.

    `path`: what messages call it. `error`: raised for all that is wrong with it: SourceError for
    what others wrote, CorruptLayoutError for outputs of mdio. `descriptor`: of the file where it is
    open already; closed with this. `last_nbytes`: bytes at its end that will be read first: those
    of an object come as it is opened.
    Raises MdioError: it is not there or cannot be opened; of the class `error`.
    """

    def __init__(
        self,
        path: Path,
        error: type[MdioError] = SourceError,
        descriptor: int = -1,
        last_nbytes: int = 0,
    ) -> None:
        self.path = path
        self.error = error
        self._descriptor = descriptor
        self.remote: RemoteObject | None = None
        """The object that is read; None for a file."""
        self._has_begun = False
        self._which = (-1, -1)
        """Identity of the file when it was pickled."""
        self.ahead: Ahead | None = None
        """Has bytes of it that have been asked for already, or will."""
        try:
            if descriptor < 0:
                self._descriptor, self.remote = store_at(path).open(path, last_nbytes)
        except OSError as failure:
            self.close()
            missing = isinstance(failure, FileNotFoundError)
            raise error(
                f"{path}: no such file"
                if missing
                else f"{path}: cannot be opened ({failure.strerror})"
            ) from failure
        self.nbytes = self.status().st_size
        """Bytes of the file when it was opened."""

    def __getstate__(self) -> dict[str, Any]:
        """Leave the descriptor behind; the path leads there from any folder."""
        is_open = self._descriptor >= 0 or self.remote is not None
        which = _identity(self.status()) if is_open else self._which
        left = {"_descriptor": -1, "_has_begun": False, "ahead": None, "remote": None}
        return {**self.__dict__, **left, "_which": which, "path": self.path.absolute()}

    def open_again(self) -> bool:
        """Open what was pickled; return whether it is the same file, and no other by its name."""
        try:
            self._descriptor, self.remote = store_at(self.path).open(self.path)
        except OSError:
            return False
        return _identity(self.status()) == self._which

    def status(self) -> os.stat_result:
        """Return size, time and identity of what is open; of an object, as they were then.

        Raises `error` where the system cannot tell them.
        """
        try:
            return os.fstat(self._descriptor) if self.remote is None else self.remote.status
        except OSError as failure:
            raise self.error(f"{self.path}: cannot be read ({failure.strerror})") from failure

    def fileno(self) -> int:
        """Return the descriptor, for what only the system can do (copying in the kernel)."""
        return self._descriptor

    def fill(self, offset: int, *buffers: Buffer) -> None:
        """Fill `buffers`, one after the other, with the bytes from `offset` on.

        Raises MdioError: it ends before, or cannot be read; of the class `error`.
        """
        n_wanted = 0
        for buffer in buffers:
            n_wanted += buffer.nbytes
        n_read = 0
        try:
            while n_read < n_wanted:  # the system reads at most 2 GiB at a time
                n_more = self._request(
                    _behind(buffers, n_read) if n_read else buffers, offset + n_read
                )
                if not n_more:
                    raise self._truncated(offset, n_wanted, offset + n_read)
                n_read += n_more
        except OSError as error:
            if isinstance(error, MdioError):
                raise
            raise self.error(
                f"{self.path}: {n_wanted} bytes at {offset} cannot be read "
                f"({error.strerror or error})"
            ) from error

    def fill_rows(
        self, offset: int, rows: NDArray[Any], sums: NDArray[np.uint32], piece_nbytes: int
    ) -> bool:
        """Fill `rows` with the bytes from `offset` on, if they have these checksums; with one call.

        `sums` ((R, P) uint32): of the pieces of each row, so many bytes long. Returns False where
        bytes have been asked for already, lie elsewhere than in this file, or are not as they
        should be: then `fill`, and look at each.
        """
        if self.remote is not None or self.ahead is not None or reads.cached is not None:
            return False
        if not self._has_begun and rows.nbytes >= LONG_NBYTES:  # see `read_with_ramp_up`
            return False
        if not read_rows(self._descriptor, offset, rows, sums, piece_nbytes):
            return False
        reads.nbytes_source += rows.nbytes
        return True

    def array(self, offset: int, nbytes: int) -> NDArray[np.uint8]:
        """Return `nbytes` bytes from `offset` on; raises what `fill` raises."""
        out = np.empty(nbytes, np.uint8)
        self.fill(offset, out)
        return out

    def peek(self, offset: int, nbytes: int) -> bytes:
        """Return up to `nbytes` bytes from `offset` on: fewer only at the end.

        Raises what `fill` raises, but not for an end that comes too early.
        """
        room = max(0, min(nbytes, self.nbytes - offset))
        content = bytearray(room)
        view = memoryview(content)
        done = 0
        try:
            while done < room:
                n_more = self._request([view[done:]], offset + done)
                if not n_more:
                    break
                done += n_more
        except OSError as error:
            raise self.error(
                f"{self.path}: bytes at {offset} cannot be read ({error.strerror or error})"
            ) from error
        return bytes(view[:done])

    def _truncated(self, offset: int, n_wanted: int, end: int) -> MdioError:
        cut = ""
        if end < self.nbytes:
            cut = f" (it was {self.nbytes} bytes long when it was opened and has been cut since)"
        again = "convert the source again" if self.error is CorruptLayoutError else "copy it again"
        return self.error(
            f"{self.path}: it is truncated: it ends at byte {end}{cut}, but bytes {offset} to "
            f"{offset + n_wanted - 1} were expected; {again}"
        )

    def read_some(self, buffers: Sequence[Buffer], offset: int) -> int:
        """Fill the beginning of `buffers` with one request, for callers with errors of their own.

        Returns how many bytes came, 0 at the end; raises OSError as the system has it.
        """
        return self._request(buffers, offset)

    def _request(self, buffers: Sequence[Buffer], offset: int) -> int:
        if reads.cached is not None and (n_read := reads.cached.read_into(self, buffers, offset)):
            return n_read
        n_read = self._from_file(buffers, offset)
        reads.nbytes_source += n_read
        return n_read

    def _from_file(self, buffers: Sequence[Buffer], offset: int) -> int:
        if self.ahead is not None and (n_read := self.ahead.read_into(self, buffers, offset)):
            return n_read
        if self.remote is not None:
            return self.remote.read_into(buffers, offset)
        if not self._has_begun and buffers[0].nbytes >= LONG_NBYTES:
            self._has_begun = True
            n_read = read_with_ramp_up(self._descriptor, _view(buffers[0]), offset)
            if n_read:
                return n_read
        # To the type checker, arrays are buffers from Python 3.12 on.
        return os.preadv(self._descriptor, buffers[:MAX_BUFFERS], offset)  # type: ignore[arg-type]

    def close(self) -> None:
        """Close the file; harmless if it is closed."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            with suppress(OSError):  # of a mount that is gone; it is closed all the same
                os.close(descriptor)

    __del__ = close


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_ino, status.st_size


def _view(buffer: Buffer) -> memoryview:
    return (buffer.data if isinstance(buffer, np.ndarray) else buffer).cast("B")


def _behind(buffers: Sequence[Buffer], done: int) -> list[Buffer]:
    """Return `buffers` without their first `done` bytes."""
    left: list[Buffer] = []
    for buffer in buffers:
        nbytes = buffer.nbytes
        if done < nbytes:
            left.append(_view(buffer)[done:] if done else buffer)
        done = max(0, done - nbytes)
    return left


SHARE = 8
"""One cache may have this part of the files that the process may have open: a reader has several
caches, and other code files of its own."""


class _Closing(Protocol):
    def close(self) -> None: ...


Key = TypeVar("Key", bound=Hashable)
Handle = TypeVar("Handle", bound=_Closing)


def handles_allowed(n_wanted: int) -> int:
    """Return how many handles a cache may keep that would like `n_wanted` of them; 1 at least."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return n_wanted
    return max(1, min(n_wanted, soft // SHARE))


class Handles(Generic[Key, Handle]):
    """Opens what is asked for, and closes what has not been asked for the longest time.

    `open_one`: opens the one that belongs to a key. `wanted`: how many to keep open, if the system
    allows it.
    """

    def __init__(self, open_one: Callable[[Key], Handle], n_wanted: int) -> None:
        self._open_one = open_one
        self._limit = handles_allowed(n_wanted)
        self._open: OrderedDict[Key, Handle] = OrderedDict()

    def __getstate__(self) -> dict[str, Any]:
        """Leave open ones behind."""
        return {**self.__dict__, "_open": OrderedDict()}

    def __getitem__(self, key: Key) -> Handle:
        """Return the handle of `key`, open until others push it out."""
        handle = self._open.get(key)
        if handle is not None:
            self._open.move_to_end(key)
            return handle
        while len(self._open) >= self._limit:
            self._open.popitem(last=False)[1].close()
        handle = self._open[key] = self._open_one(key)
        return handle

    def __contains__(self, key: object) -> bool:
        return key in self._open

    def __iter__(self) -> Iterator[Key]:
        return iter(self._open)

    def __len__(self) -> int:
        return len(self._open)

    def close(self) -> None:
        """Close all of them; they are opened again if they are asked for."""
        while self._open:
            self._open.popitem()[1].close()
