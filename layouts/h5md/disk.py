"""HDF5 files that are written, every byte by our own calls, and the seal that closes them.

HDF5 keeps much in memory and writes it when something is closed. h5py ignores errors there, so that
a file whose tables did not fit may count as written; and after such an error HDF5 1.10 to 1.14 may
crash. So HDF5 writes into an object of ours (h5py's driver for Python's file objects), which never
fails. If the disk does, what follows stays in memory, HDF5 can close the file in peace, and the
error is raised afterwards.

The seal is a checksum of all bytes that no other checksum covers. It lies behind what HDF5 knows of
the file: 24 bytes with the length of what comes before, the crc32c of that without the chunks of
the arrays (which have checksums of their own), and the crc32c of the seal so far. It covers HDF5's
superblock, object headers and indexes, attributes, units, names and links, the manifest, tables,
times, steps, cells, edges and numbers of atoms, and what lies unused between them. Programs that
change or copy a file with HDF5 leave the seal behind: then numbers are still verified by the
manifest's checksums, but no attributes and no structures.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import compress
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from mdio.core.errors import FOREIGN_ERRORS, CorruptLayoutError, OutputError
from mdio.core.files.in_flight import ByteRange, in_flight
from mdio.core.files.reading import OpenFile
from mdio.core.kernels import crc32c
from mdio.layouts.foreign.hdf5 import FileObject
from mdio.layouts.h5md.io import MANIFEST, checksum
from mdio.layouts.h5md.opening import SEAL

Written = list[tuple[int, int]]
"""Offsets and lengths."""
MODES = {"x": os.O_CREAT | os.O_EXCL, "w": os.O_CREAT | os.O_TRUNC, "r+": 0}


class _Disk(FileObject):
    """Plain calls, of which the first that fails is kept."""

    def __init__(self, path: Path, mode: str, written: Written | None) -> None:
        self._written = [] if written is None else written
        self.failure: BaseException | None = None
        self._fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | MODES[mode], 0o666)
        super().__init__(os.fstat(self._fd).st_size)
        self._kept: list[tuple[int, bytes]] = []
        """Writes after the failure: HDF5 reads them back until it has closed the file."""

    def _try(self, call: Callable[[], None]) -> None:
        """Do what may fail, unless something has; Ctrl-C has to wait as well."""
        if self.failure is None:
            try:
                call()
            except BaseException as error:
                self.failure = error

    def readinto(self, target: Any) -> int:
        """Fill a buffer; zeros where there is nothing."""
        view = memoryview(target).cast("B")
        done = 0
        try:
            while n_read := os.preadv(self._fd, [view[done:]], self._at + done):
                done += n_read
        except BaseException as error:
            self.failure = self.failure or error
        view[done:] = bytes(len(view) - done)
        for offset, data in self._kept:
            first, last = max(offset, self._at), min(offset + len(data), self._at + len(view))
            if first < last:
                view[first - self._at : last - self._at] = data[first - offset : last - offset]
        self._at += len(view)
        return len(view)

    def write(self, data: Any) -> int:
        """Write a buffer."""
        view = memoryview(data).cast("B")

        def write() -> None:
            done = 0
            while done < len(view):
                done += os.pwrite(self._fd, view[done:], self._at + done)

        self._try(write)
        self._written.append((self._at, len(view)))
        if self.failure is not None:
            self._kept.append((self._at, bytes(view)))
        self._at += len(view)
        self._nbytes = max(self._nbytes, self._at)
        return len(view)

    def truncate(self, size: int) -> int:
        """Give the file its size."""
        self._nbytes = size
        self._try(lambda: os.ftruncate(self._fd, size))
        return size

    def flush(self) -> None:
        """Do nothing: nothing is kept back."""

    def close(self) -> None:
        """Flush to the disk, and close."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            self._try(lambda: os.fsync(fd))
            os.close(fd)


class OutputFile:
    """An HDF5 file that is written.

    `path`: the file. `mode`: ``x`` for a new file, ``w`` for one that may be there, ``r+`` for one
    to go on with. `written`: takes the offset and length of all that is written. `options`: of
    `h5py.File`. Attributes: `file` (h5py.File): the same, open. Its changes are on disk once
    `close` has returned.
    """

    def __init__(
        self, path: Path, mode: str, written: Written | None = None, **options: Any
    ) -> None:
        self._disk = _Disk(path, mode, written)
        try:
            with self.raising_disk_errors():
                self.file = h5py.File(self._disk, "r+" if mode == "r+" else "w", **options)
        except BaseException:
            self._disk.close()
            raise

    @contextmanager
    def raising_disk_errors(self) -> Iterator[None]:
        """Raise what the disk has said by the end, or in place of what HDF5 makes of it."""
        try:
            yield
        except FOREIGN_ERRORS as error:
            if self._disk.failure is not None:
                raise self._disk.failure from error
            raise
        if self._disk.failure is not None:
            raise self._disk.failure

    def flush(self) -> None:
        """Write what HDF5 has kept in memory; raises OSError."""
        with self.raising_disk_errors():
            self.file.flush()

    def close(self) -> None:
        """Write everything and close; raises OSError if anything was not written."""
        with self.raising_disk_errors():
            try:
                self.file.close()
            finally:
                self._disk.close()


@contextmanager
def open_output(
    path: Path, mode: str, written: Written | None = None, **options: Any
) -> Iterator[h5py.File]:
    """Open a file as `OutputFile` does, and close it; raises OSError."""
    output = OutputFile(path, mode, written, **options)
    try:
        yield output.file
    except BaseException:
        with suppress(OSError, OutputError):  # the first error counts
            output.close()
        raise
    output.close()


_BODY = struct.Struct("<8sQI")
NBYTES = _BODY.size + 4
ZEROS = bytes(1 << 16)
_END_OF_FILE = {0: 40, 1: 44, 2: 28, 3: 28}
"""Where superblocks of these versions say at which byte HDF5's part of the file ends."""

Places = Iterable[tuple[NDArray[np.int64], NDArray[np.int64]]]


def gaps(places: Places, size: int) -> Iterator[tuple[int, int]]:
    """Yield (first byte, one beyond the last) of what lies between chunks, in order."""
    flat = [(offset.ravel(), nbytes.ravel()) for offset, nbytes in places]
    starts = np.concatenate([np.zeros(0, np.int64), *(offset for offset, _ in flat)])
    ends = starts + np.concatenate([np.zeros(0, np.int64), *(nbytes for _, nbytes in flat)])
    order = np.argsort(starts, kind="stable")
    begins = np.concatenate([[0], np.maximum.accumulate(ends[order])])
    stops = np.concatenate([starts[order], [size]])
    for k in np.flatnonzero(stops > begins).tolist():
        yield int(begins[k]), int(stops[k])


def _checksum(file: OpenFile, places: Places, size: int, written: Written | None = None) -> int:
    crc = 0  # alignment leaves a small gap before each chunk
    between = list(gaps(places, size))
    is_read = _reached(between, written)
    ranges = compress(between, is_read)
    with in_flight(ByteRange(file, begin, stop - begin) for begin, stop in ranges):
        for (begin, stop), read in zip(between, is_read, strict=True):
            crc = (checksum if read else _of_zeros)(file, begin, stop - begin, crc)
    return crc


def _reached(ranges: Sequence[tuple[int, int]], written: Written | None) -> list[bool]:
    """Return which ranges (first byte, one beyond the last) hold something of what was written."""
    if written is None or not ranges:
        return [True] * len(ranges)
    offsets, lengths = np.array(sorted(written), np.int64).reshape(-1, 2).T
    ends = np.concatenate([[0], np.maximum.accumulate(offsets + lengths)])
    begins, stops = np.array(ranges, np.int64).T
    reached: list[bool] = (ends[np.searchsorted(offsets, stops)] > begins).tolist()
    return reached


def _of_zeros(_: OpenFile, begin: int, nbytes: int, crc: int) -> int:
    for first in range(begin, begin + nbytes, len(ZEROS)):
        crc = crc32c(ZEROS[: begin + nbytes - first], crc)
    return crc


def make_seal(file: OpenFile, places: Places, written: Written | None = None) -> bytes:
    """Return the seal of a file that has none yet; raises CorruptLayoutError.

    `places` are offsets and lengths of the chunks of each array. `written`, of a file that was made
    now, has those of all else that was written: the rest holds zeros, and is not read.
    """
    body = _BODY.pack(SEAL, file.nbytes, _checksum(file, places, file.nbytes, written))
    return body + struct.pack("<I", crc32c(body))


def find_seal_problem(
    file: OpenFile, places: Places, what: str, written: Written | None = None
) -> str | None:
    """Return the text of a problem with a file or its seal; None if it is whole or has no seal.

    `places`, `written`: as for `make_seal`.
    """
    size = file.nbytes
    head = file.peek(0, 64).ljust(64, b"\0")
    (hdf5_ends,) = struct.unpack_from("<Q", head, _END_OF_FILE.get(head[8], 40))
    if hdf5_ends == size:
        return None
    seal = file.peek(max(size - NBYTES, 0), NBYTES)
    whole = len(seal) == NBYTES and seal[-4:] == struct.pack("<I", crc32c(seal[:-4]))
    magic, length, expected = _BODY.unpack(seal[:-4]) if whole else (b"", 0, 0)
    if magic != SEAL or length != size - NBYTES:
        return f"{what}: HDF5's part ends at byte {hdf5_ends} of {size}, and no seal follows it"
    crc = _checksum(file, places, length, written)
    if crc != expected:
        return (
            f"{what}: crc32c {crc:08x} of all but the frames found, {expected:08x} expected; "
            "the file is damaged or was changed: convert the source again"
        )
    return None


def check_seal(file: OpenFile, places: Places, what: str) -> None:
    """Raise CorruptLayoutError if the seal is not that of the file, or there is none."""
    problem = find_seal_problem(file, places, what)
    if problem is not None:
        raise CorruptLayoutError(problem)


def check_written(
    path: Path, manifest_crc32c: int, places: Places, written: Written | None
) -> None:
    """Open a file that was just made, and compare what was written last; raises OutputError."""
    with h5py.File(path, "r", locking="best-effort") as file:
        manifest = bytes(np.asarray(file[MANIFEST]).tobytes())
    with OpenFile(path, CorruptLayoutError) as opened:
        problem = find_seal_problem(opened, places, str(path), written)
    if crc32c(manifest) != manifest_crc32c or problem is not None:
        raise OutputError(
            f"{path}: what was written is not what is there ({problem or 'manifest'}); "
            "check the disk and convert again"
        )
