"""HDF5 files that are written: HDF5 makes the bytes, and every one goes to disk by our own calls.

HDF5 keeps much in memory and writes it when something is closed. h5py ignores errors there, so that
a file whose tables did not fit may count as written; and after such an error HDF5 1.10 to 1.14 may
crash. So HDF5 writes into an object of ours (h5py's driver for Python's file objects), which never
fails. If the disk does, what follows stays in memory, HDF5 can close the file in peace, and the
error is raised afterwards.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import h5py

from mdio.core.errors import FOREIGN_ERRORS, OutputError
from mdio.layouts.foreign.hdf5 import FileObject

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
        """What came after the failure: HDF5 finds it again until it has closed the file."""

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
    to go on with. `written`: takes the offset and length of whatever is written. `options`: of
    `h5py.File`. Attributes: `file` (h5py.File): the same, open. Its changes are on disk once
    `close` has returned.
    """

    def __init__(
        self, path: Path, mode: str, written: Written | None = None, **options: Any
    ) -> None:
        self._disk = _Disk(path, mode, written)
        try:
            with self.telling():
                self.file = h5py.File(self._disk, "r+" if mode == "r+" else "w", **options)
        except BaseException:
            self._disk.close()
            raise

    @contextmanager
    def telling(self) -> Iterator[None]:
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
        with self.telling():
            self.file.flush()

    def close(self) -> None:
        """Write everything and close; raises OSError if anything was not written."""
        with self.telling():
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
        with suppress(OSError, OutputError):  # the first error tells more
            output.close()
        raise
    output.close()
