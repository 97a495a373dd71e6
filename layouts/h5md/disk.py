"""Writing HDF5 files through a Python file object, and the seal at their end.

HDF5 keeps much in memory and writes it when something is closed. h5py ignores errors there, so that
a file whose tables did not fit may count as written; and after such an error HDF5 1.10 to 1.14 may
crash. So HDF5 writes into a file object of mdio (h5py's driver ``fileobj``), which never fails: if
the disk fails, later writes stay in memory, and its error is raised once HDF5 has closed the file.

The seal is a checksum of all bytes that no other checksum covers. It comes after HDF5's part of the
file: 24 bytes with the length of that part, its crc32c without the chunks of the arrays, and the
crc32c of the seal so far. It covers HDF5's superblock, object headers and indexes, attributes,
units, names and links, the manifest, tables, times, steps, boxes, edges, numbers of atoms, and
unused bytes between them. Programs that change or copy a file with HDF5 drop the seal: then numbers
are still verified by the manifest's checksums, but attributes and structures are not.
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
from mdio.layouts.h5md.opening import SEAL, SEAL_NBYTES

Writes = list[tuple[int, int]]
OPEN_FLAGS = {"x": os.O_CREAT | os.O_EXCL, "w": os.O_CREAT | os.O_TRUNC, "r+": 0}


class _DiskFile(FileObject):
    """A file object that never raises: it keeps the first error, and then writes to memory."""

    def __init__(self, path: Path, mode: str, writes: Writes | None) -> None:
        self._writes = [] if writes is None else writes
        self.failure: BaseException | None = None
        self._fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | OPEN_FLAGS[mode], 0o666)
        super().__init__(os.fstat(self._fd).st_size)
        self._writes_in_memory: list[tuple[int, bytes]] = []
        """Writes after the failure, which HDF5 may read again before it closes the file."""

    def _try(self, call: Callable[[], None]) -> None:
        """Call `call`, unless one has failed, and keep its error, even KeyboardInterrupt."""
        if self.failure is None:
            try:
                call()
            except BaseException as error:
                self.failure = error

    def readinto(self, target: Any) -> int:
        """Fill a buffer, with zeros beyond the end of the file."""
        view = memoryview(target).cast("B")
        n_filled = 0
        try:
            while n_read := os.preadv(self._fd, [view[n_filled:]], self._position + n_filled):
                n_filled += n_read
        except BaseException as error:
            self.failure = self.failure or error
        view[n_filled:] = bytes(len(view) - n_filled)
        for offset, data in self._writes_in_memory:
            begin = self._position
            first, last = max(offset, begin), min(offset + len(data), begin + len(view))
            if first < last:
                view[first - begin : last - begin] = data[first - offset : last - offset]
        self._position += len(view)
        return len(view)

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")

        def write() -> None:
            n_written = 0
            while n_written < len(view):
                n_written += os.pwrite(self._fd, view[n_written:], self._position + n_written)

        self._try(write)
        self._writes.append((self._position, len(view)))
        if self.failure is not None:
            self._writes_in_memory.append((self._position, bytes(view)))
        self._position += len(view)
        self._nbytes = max(self._nbytes, self._position)
        return len(view)

    def truncate(self, size: int) -> int:
        self._nbytes = size
        self._try(lambda: os.ftruncate(self._fd, size))
        return size

    def flush(self) -> None:
        """Do nothing: nothing is buffered."""

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            self._try(lambda: os.fsync(fd))
            os.close(fd)


class OutputFile:
    """An HDF5 file that is open for writing.

    `path`: the file. `mode`: ``x`` for a new file, ``w`` to overwrite one, ``r+`` to change one.
    `writes`: list to which offset and length of each write are added. `options`: of `h5py.File`.
    Attributes: `file` (h5py.File): the open file. Its changes are on disk once `close` has
    returned.
    """

    def __init__(self, path: Path, mode: str, writes: Writes | None = None, **options: Any) -> None:
        self._disk = _DiskFile(path, mode, writes)
        try:
            with self.raising_disk_errors():
                self.file = h5py.File(self._disk, "r+" if mode == "r+" else "w", **options)
        except BaseException:
            self._disk.close()
            raise

    @contextmanager
    def raising_disk_errors(self) -> Iterator[None]:
        """Raise the disk's error at the end of the context, or in place of HDF5's error."""
        try:
            yield
        except FOREIGN_ERRORS as error:
            if self._disk.failure is not None:
                raise self._disk.failure from error
            raise
        if self._disk.failure is not None:
            raise self._disk.failure

    def flush(self) -> None:
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
    path: Path, mode: str, writes: Writes | None = None, **options: Any
) -> Iterator[h5py.File]:
    """Open a file as `OutputFile` does, and close it; raises OSError."""
    output = OutputFile(path, mode, writes, **options)
    try:
        yield output.file
    except BaseException:
        with suppress(OSError, OutputError):  # the first error counts
            output.close()
        raise
    output.close()


_SEAL_BODY = struct.Struct("<8sQI")
ZEROS = bytes(1 << 16)
_END_OF_FILE_OFFSETS = {0: 40, 1: 44, 2: 28, 3: 28}
"""By version of the superblock, where it has the address at which HDF5's part of the file ends."""

ArrayRanges = tuple[NDArray[np.int64], NDArray[np.int64]]
"""Offsets and sizes of the chunks of one array."""
RangesOfArrays = Iterable[ArrayRanges]


def gaps(chunks: RangesOfArrays, size: int) -> Iterator[tuple[int, int]]:
    """Yield (first byte, one beyond the last) of each gap between chunks, in order."""
    flat_ranges = [(offset.ravel(), nbytes.ravel()) for offset, nbytes in chunks]
    chunk_begins = np.concatenate([np.zeros(0, np.int64), *(offset for offset, _ in flat_ranges)])
    chunk_ends = chunk_begins + np.concatenate(
        [np.zeros(0, np.int64), *(nbytes for _, nbytes in flat_ranges)]
    )
    order = np.argsort(chunk_begins, kind="stable")
    gap_begins = np.concatenate([[0], np.maximum.accumulate(chunk_ends[order])])
    gap_ends = np.concatenate([chunk_begins[order], [size]])
    for k in np.flatnonzero(gap_ends > gap_begins).tolist():
        yield int(gap_begins[k]), int(gap_ends[k])


def _checksum_without_chunks(
    file: OpenFile, chunks: RangesOfArrays, size: int, writes: Writes | None = None
) -> int:
    """Return the crc32c of the first `size` bytes of a file without its chunks."""
    crc = 0
    ranges = list(gaps(chunks, size))  # many: alignment leaves a small one before each chunk
    is_written = _has_writes(ranges, writes)
    to_read = compress(ranges, is_written)
    with in_flight(ByteRange(file, begin, stop - begin) for begin, stop in to_read):
        for (begin, stop), has_data in zip(ranges, is_written, strict=True):
            crc = (checksum if has_data else _zeros_checksum)(file, begin, stop - begin, crc)
    return crc


def _has_writes(ranges: Sequence[tuple[int, int]], writes: Writes | None) -> list[bool]:
    """Return which ranges (first byte, one beyond the last) overlap with writes."""
    if writes is None or not ranges:
        return [True] * len(ranges)
    offsets, lengths = np.array(sorted(writes), np.int64).reshape(-1, 2).T
    ends = np.concatenate([[0], np.maximum.accumulate(offsets + lengths)])
    begins, stops = np.array(ranges, np.int64).T
    overlap: list[bool] = (ends[np.searchsorted(offsets, stops)] > begins).tolist()
    return overlap


def _zeros_checksum(_: OpenFile, begin: int, nbytes: int, crc: int) -> int:
    for first in range(begin, begin + nbytes, len(ZEROS)):
        crc = crc32c(ZEROS[: begin + nbytes - first], crc)
    return crc


def make_seal(file: OpenFile, chunks: RangesOfArrays, writes: Writes | None = None) -> bytes:
    """Return the seal of a file that has none yet; raises CorruptLayoutError.

    `writes`: offsets and lengths of all other writes, in a file that this process made;
    bytes outside of both are zeros, and are not read.
    """
    body = _SEAL_BODY.pack(
        SEAL, file.nbytes, _checksum_without_chunks(file, chunks, file.nbytes, writes)
    )
    return body + struct.pack("<I", crc32c(body))


def check_seal(
    file: OpenFile, chunks: RangesOfArrays, name: str, writes: Writes | None = None
) -> None:
    """Raise CorruptLayoutError if a file does not match its seal, which it may lack."""
    size = file.nbytes
    head = file.peek(0, 64).ljust(64, b"\0")
    (hdf5_end,) = struct.unpack_from("<Q", head, _END_OF_FILE_OFFSETS.get(head[8], 40))
    if hdf5_end == size:
        return
    seal = file.peek(max(size - SEAL_NBYTES, 0), SEAL_NBYTES)
    is_intact = len(seal) == SEAL_NBYTES and seal[-4:] == struct.pack("<I", crc32c(seal[:-4]))
    magic, length, expected = _SEAL_BODY.unpack(seal[:-4]) if is_intact else (b"", 0, 0)
    if magic != SEAL or length != size - SEAL_NBYTES:
        raise CorruptLayoutError(
            f"{name}: HDF5's part ends at byte {hdf5_end} of {size}, and no seal follows it"
        )
    crc = _checksum_without_chunks(file, chunks, length, writes)
    if crc != expected:
        raise CorruptLayoutError(
            f"{name}: crc32c {crc:08x} of all but the frames found, {expected:08x} expected; "
            "the file is damaged or was changed: convert the source again"
        )


def check_written(
    path: Path, manifest_crc32c: int, chunks: RangesOfArrays, writes: Writes | None
) -> None:
    """Open a file that was just made, and compare manifest and seal; raises OutputError."""
    with h5py.File(path, "r", locking="best-effort") as file:
        manifest = bytes(np.asarray(file[MANIFEST]).tobytes())
    problem = None if crc32c(manifest) == manifest_crc32c else "manifest"
    try:
        with OpenFile(path, CorruptLayoutError) as written_file:
            check_seal(written_file, chunks, str(path), writes)
    except CorruptLayoutError as error:
        problem = str(error)
    if problem is not None:
        raise OutputError(
            f"{path}: the file does not hold what was written ({problem}); check the disk and "
            "convert again"
        )
