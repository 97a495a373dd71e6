"""Reading files by position, and caches of open files.

All reads of mdio by position go through an `OpenFile`, so that there is one loop for calls that
return fewer bytes than wanted, and one wording of errors. Files are read with preadv, never mapped
into memory: if a file is cut while it is read, that gives an error and not a signal, and a forked
process shares no file position with its parent.

`HandleCache` keeps the most recently used files open, within the limits of the system.
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
from mdio.core.files.store import mounts, store_at
from mdio.core.frames import uninitialised_array
from mdio.core.kernels import read_rows
from mdio.core.stalls import pending_calls


class Closable:
    """A context manager that calls `close` at its end."""

    def close(self) -> None:
        """Release all resources."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


Buffer = NDArray[Any] | memoryview
"""C-contiguous and writable."""

MAX_BUFFERS = 1000
"""Buffers that one call fills; the system allows 1024."""


# The first long read of a file begins with a short call, which makes all reads faster from then on.
# Linux reads ahead of a program that reads a file in order, in windows that grow, and keeps the
# larger ones in larger runs of memory (folios, of ext4 and XFS). But the first window is kept page
# by page, and is at least as large as the first call: a file whose first megabytes are read at once
# lies scattered in the page cache, and copying from there takes up to three times as long from then
# on, for all programs (``mm/readahead.c`` of Linux 6: the first window has order 0, each following
# one a higher order). On network file systems (Lustre, NFS) every call waits for a server, so
# reads are not split there.
FOLIO_FILE_SYSTEMS = {"ext4", "xfs"}
"""File systems on disks of this machine whose files are kept in folios."""

FIRST_NBYTES = 8 << 10
"""Bytes of the first call."""
MIN_SPLIT_NBYTES = 512 << 10
"""Reads of fewer bytes, such as of single frames of small systems, are not split."""


@cache
def devices_with_folios() -> frozenset[int]:
    """Return the devices (``st_dev``) whose files are kept in folios."""
    return frozenset(device for device, _, type_name in mounts() if type_name in FOLIO_FILE_SYSTEMS)


def read_first_bytes(fd: int, target: memoryview, offset: int) -> int:
    """Read the first bytes of a run of a file with a short call; return how many.

    0 if the file system keeps no folios, or at the end of the file. `fd`: a file of which no long
    run has been read before.
    """
    if os.fstat(fd).st_dev not in devices_with_folios():
        return 0
    return os.preadv(fd, [target[:FIRST_NBYTES]], offset)


class ByteSource(Protocol):
    """Bytes of files in memory (`mdio.core.files.in_flight`) or in a node's cache."""

    def read_into(self, file: OpenFile, buffers: Sequence[Buffer], offset: int) -> int:
        """Fill the beginning of `buffers`, and return with how many bytes; 0 if it has none."""


class _Reads(threading.local):
    """Counters of a thread's reads, and the cache that it reads from first."""

    cache: ByteSource | None = None
    """The node's cache, from which bytes are taken if it has them."""
    nbytes_source = 0
    """Bytes that were read from files by position."""
    nbytes_cache = 0
    """Bytes that were read from the node's cache."""


reads = _Reads()


@contextmanager
def without_counting() -> Iterator[None]:
    """Do not count bytes that are read to recognise a format: those may be of topologies, too."""
    nbytes_before = reads.nbytes_source
    try:
        yield
    finally:
        reads.nbytes_source = nbytes_before


@contextmanager
def reading_from(cache: ByteSource | None) -> Iterator[None]:
    """Have this thread read from `cache` what it has, and the rest from files; None = no cache."""
    former_cache, reads.cache = reads.cache, cache
    try:
        yield
    finally:
        reads.cache = former_cache


class OpenFile(Closable):
    """A file, opened for reading by position.

    `path`: the file, as messages name it. `error`: the class of all errors: SourceError for files
    of other programs, CorruptLayoutError for outputs of mdio. `descriptor`: of the file if it is
    open already; closed with this. `last_nbytes`: bytes at its end that will be read first; an
    object of a store is opened with one request, which reads them.
    Raises MdioError: it does not exist or cannot be opened; of the class `error`.
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
        self._has_long_read = False
        """Whether a run of `MIN_SPLIT_NBYTES` or more has been read."""
        self._pickled_identity = (-1, -1)
        self.prefetcher: ByteSource | None = None
        """Has prefetched bytes of the file, or will."""
        pending_calls.begin("opening", path)
        try:
            if descriptor < 0:
                self._descriptor, self.remote = store_at(path).open(path, last_nbytes)
        except OSError as failure:
            self.close()
            is_missing = isinstance(failure, FileNotFoundError)
            problem = "no such file" if is_missing else f"cannot be opened ({failure.strerror})"
            raise error(f"{path}: {problem}") from failure
        finally:
            pending_calls.end()
        self.nbytes = self.status().st_size
        """Bytes of the file when it was opened."""

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without the descriptor, with a path that is valid in any folder."""
        is_open = self._descriptor >= 0 or self.remote is not None
        identity = _identity(self.status()) if is_open else self._pickled_identity
        return self.__dict__ | {
            "_descriptor": -1,
            "_has_long_read": False,
            "_pickled_identity": identity,
            "path": self.path.absolute(),
            "prefetcher": None,
            "remote": None,
        }

    def reopen(self) -> bool:
        """Open the file after unpickling; return whether it is still the same one."""
        try:
            self._descriptor, self.remote = store_at(self.path).open(self.path)
        except OSError:
            return False
        return _identity(self.status()) == self._pickled_identity

    def status(self) -> os.stat_result:
        """Return size, time and identity of the open file; of an object, as it was opened."""
        try:
            return os.fstat(self._descriptor) if self.remote is None else self.remote.status
        except OSError as failure:
            raise self.error(f"{self.path}: cannot be read ({failure.strerror})") from failure

    @property
    def is_on_disk(self) -> bool:
        """Whether it is on a disk of this machine, where no call waits for a server."""
        return self.remote is None and os.fstat(self._descriptor).st_dev in devices_with_folios()

    def fileno(self) -> int:
        """Return the descriptor, for calls that OpenFile does not have (copying in the kernel)."""
        return self._descriptor

    def fill(self, offset: int, *buffers: Buffer) -> None:
        """Fill `buffers`, one after the other, with the bytes from `offset` on.

        Raises MdioError: the file ends too early, or cannot be read; of the class `error`.
        """
        nbytes = 0
        for buffer in buffers:
            nbytes += buffer.nbytes
        n_read = self._read(offset, nbytes, buffers)
        if n_read < nbytes:
            raise self._truncation_error(offset, nbytes, offset + n_read)

    def _read(self, offset: int, nbytes: int, buffers: Sequence[Buffer]) -> int:
        """Fill `buffers`, of `nbytes` in all, and return how many were read: fewer at the end."""
        n_read = 0
        try:
            while n_read < nbytes:  # the system reads at most 2 GiB at a time
                if pending_calls.n_watches:
                    pending_calls.begin("reading", self.path)
                n_more = self.read_some(
                    _without_first(buffers, n_read) if n_read else buffers, offset + n_read
                )
                if not n_more:
                    break
                n_read += n_more
        except OSError as error:
            if isinstance(error, MdioError):
                raise
            raise self.error(
                f"{self.path}: {nbytes} bytes at {offset} cannot be read "
                f"({error.strerror or error})"
            ) from error
        finally:
            if pending_calls.n_watches:
                pending_calls.end()
        return n_read

    def fill_rows(
        self, offset: int, rows: NDArray[Any], checksums: NDArray[np.uint32], span_nbytes: int
    ) -> bool:
        """Fill `rows` with the bytes from `offset` on, and verify them, with one call of C++.

        `checksums`, (R, P) uint32: of the spans, of `span_nbytes`, of each row. Returns False if
        bytes may be in a cache, in flight or in a store, or differ from their checksums: then use
        `fill`.
        """
        if self.remote is not None or self.prefetcher is not None or reads.cache is not None:
            return False
        if not self._has_long_read and rows.nbytes >= MIN_SPLIT_NBYTES:  # see `read_first_bytes`
            return False
        if pending_calls.n_watches:
            pending_calls.begin("reading", self.path)
        is_valid = read_rows(self._descriptor, offset, rows, checksums, span_nbytes)
        if pending_calls.n_watches:
            pending_calls.end()
        if not is_valid:
            return False
        reads.nbytes_source += rows.nbytes
        return True

    def array(self, offset: int, nbytes: int) -> NDArray[np.uint8]:
        """Return `nbytes` bytes from `offset` on; raises the errors of `fill`."""
        out = uninitialised_array((nbytes,), np.uint8)
        self.fill(offset, out)
        return out

    def peek(self, offset: int, nbytes: int) -> bytes:
        """Return up to `nbytes` bytes from `offset` on: fewer only at the end."""
        view = memoryview(bytearray(max(0, min(nbytes, self.nbytes - offset))))
        return bytes(view[: self._read(offset, len(view), [view])])

    def _truncation_error(self, offset: int, nbytes: int, end: int) -> MdioError:
        cut = ""
        if end < self.nbytes:
            cut = f" (it was {self.nbytes} bytes long when it was opened and has been cut since)"
        advice = "convert the source again" if self.error is CorruptLayoutError else "copy it again"
        return self.error(
            f"{self.path}: it is truncated: it ends at byte {end}{cut}, but bytes {offset} to "
            f"{offset + nbytes - 1} were expected; {advice}"
        )

    def read_some(self, buffers: Sequence[Buffer], offset: int) -> int:
        """Fill the beginning of `buffers` with one call, from the cache if it has the bytes.

        Returns how many bytes were read, 0 at the end; raises OSError as the system does.
        """
        if reads.cache is not None and (n_read := reads.cache.read_into(self, buffers, offset)):
            return n_read
        n_read = self._read_uncached(buffers, offset)
        reads.nbytes_source += n_read
        return n_read

    def _read_uncached(self, buffers: Sequence[Buffer], offset: int) -> int:
        prefetcher = self.prefetcher
        if prefetcher is not None and (n_read := prefetcher.read_into(self, buffers, offset)):
            return n_read
        if self.remote is not None:
            return self.remote.read_into(buffers, offset)
        if not self._has_long_read and buffers[0].nbytes >= MIN_SPLIT_NBYTES:
            self._has_long_read = True
            n_read = read_first_bytes(self._descriptor, _byte_view(buffers[0]), offset)
            if n_read:
                return n_read
        # To the type checker, arrays are buffers from Python 3.12 on.
        return os.preadv(self._descriptor, buffers[:MAX_BUFFERS], offset)  # type: ignore[arg-type]

    def close(self) -> None:
        """Close the file; may be called again."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            with suppress(OSError):  # a lost mount; the descriptor is closed all the same
                os.close(descriptor)

    __del__ = close


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_ino, status.st_size


def _byte_view(buffer: Buffer) -> memoryview:
    return (buffer.data if isinstance(buffer, np.ndarray) else buffer).cast("B")


def _without_first(buffers: Sequence[Buffer], skip: int) -> list[Buffer]:
    """Return `buffers` without their first `skip` bytes in all."""
    remaining: list[Buffer] = []
    for buffer in buffers:
        nbytes = buffer.nbytes
        if skip < nbytes:
            remaining.append(_byte_view(buffer)[skip:] if skip else buffer)
        skip = max(0, skip - nbytes)
    return remaining


HANDLES_DIVISOR = 8
"""One cache may keep an eighth of the files open that the process may: a reader has several caches,
and other code has files of its own."""


class _HasClose(Protocol):
    def close(self) -> None: ...


Key = TypeVar("Key", bound=Hashable)
Handle = TypeVar("Handle", bound=_HasClose)


def handles_allowed(max_open: int) -> int:
    """Return how many handles a cache may keep: `max_open` if the limit allows, 1 at least."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return max_open
    return max(1, min(max_open, soft // HANDLES_DIVISOR))


class HandleCache(Generic[Key, Handle]):
    """Opens handles when they are asked for, and closes the least recently used ones.

    `open_one`: opens the handle of a key. `max_open`: how many to keep open, if the system allows.
    """

    def __init__(self, open_one: Callable[[Key], Handle], max_open: int) -> None:
        self._open_one = open_one
        self._limit = handles_allowed(max_open)
        self._open: OrderedDict[Key, Handle] = OrderedDict()

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without open handles."""
        return {**self.__dict__, "_open": OrderedDict()}

    def __getitem__(self, key: Key) -> Handle:
        """Return the handle of `key`, which stays open until others are used more recently."""
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
        """Close all handles; they are opened again when they are asked for."""
        while self._open:
            self._open.popitem()[1].close()
