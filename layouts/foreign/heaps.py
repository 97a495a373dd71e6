"""Finds damage in HDF5 files that the library does not survive.

Strings of variable length lie in global heaps (HDF5 File Format Specification 3.0, III.E): 4 KiB or
more of objects one behind the other, each with its size. Where a size is such that the next object
is this one again, HDF5 goes round for ever, in a call that nothing interrupts. So before the
attributes of a file of others are read, they are read once through a file object that looks at
what passes, and shows HDF5 nothing of a heap that is damaged.
"""

from __future__ import annotations

import os
import struct
from abc import ABC, abstractmethod
from contextlib import suppress
from pathlib import Path
from typing import Any

import h5py

from mdio.core.errors import FOREIGN_ERRORS, SourceError
from mdio.core.files.reading import OpenFile

SIGNATURE = b"GCOL"
HEADER = struct.Struct("<4sB3xQ")
"""Signature, version, and bytes of the whole."""
OBJECT = struct.Struct("<H6xQ")
"""Number of an object, 0 for free space, and its bytes: without this header, with it if free."""
MAX_NBYTES = 1 << 28
"""Of a heap that is looked through; one is as large as the longest string in it."""
MAX_ATTRIBUTES = 10_000
"""Attributes that are looked at: trajectories have a few dozen."""


class FileObject(ABC):
    """What h5py takes for a file, of so many bytes."""

    def __init__(self, nbytes: int) -> None:
        self._at, self._nbytes = 0, nbytes

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Go to a place in the file."""
        begin = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._nbytes}[whence]
        self._at = begin + offset
        return self._at

    def tell(self) -> int:
        """Return the place."""
        return self._at

    def read(self, nbytes: int) -> bytes:
        """Return bytes; by this h5py knows an object for a file."""
        data = bytearray(nbytes)
        self.readinto(data)
        return bytes(data)

    @abstractmethod
    def readinto(self, target: Any) -> int:
        """Fill a buffer; zeros where there is nothing."""


class _Watched(FileObject):
    """One that is read."""

    def __init__(self, file: OpenFile) -> None:
        super().__init__(file.nbytes)
        self.damaged_at: int | None = None
        self._file = file

    def readinto(self, target: Any) -> int:
        """Fill a buffer; zeros where there is nothing, or a damaged heap."""
        view = memoryview(target).cast("B")
        begin = max(0, self._at - len(SIGNATURE))  # HDF5 may have read a part of it before
        data = self._file.peek(begin, self._at + len(view) - begin)
        found = data.find(SIGNATURE)
        while found >= 0 and self.damaged_at is None:
            if not self._is_sound(begin + found):
                self.damaged_at = begin + found
            found = data.find(SIGNATURE, found + 1)
        data = b"" if self.damaged_at is not None else data[self._at - begin :]
        view[:] = data.ljust(len(view), b"\0")
        self._at += len(view)
        return len(view)

    def _is_sound(self, offset: int) -> bool:
        head = self._file.peek(offset, HEADER.size)
        if len(head) < HEADER.size:
            return True  # HDF5 sees that itself
        nbytes = HEADER.unpack(head)[2]
        heap = self._file.peek(offset, min(nbytes, MAX_NBYTES))
        at = HEADER.size
        while at + OBJECT.size <= len(heap):
            number, size = OBJECT.unpack_from(heap, at)
            at += OBJECT.size + size + -size % 8 if number else size
            if at > nbytes or (number == 0 and size < OBJECT.size):
                return False
        return True


def check_heaps(path: Path) -> None:
    """Read all attributes of an HDF5 file, as far as that is safe.

    Raises SourceError: a global heap is damaged.
    """
    with OpenFile(path) as file:
        watched = _Watched(file)
        with (
            suppress(*FOREIGN_ERRORS),  # whoever opens it next says what is wrong with it
            h5py.File(watched, "r") as opened,
        ):
            _read_attributes(opened, watched)
        if watched.damaged_at is not None:
            raise SourceError(
                f"{path}: the strings at byte {watched.damaged_at} (a global heap of HDF5) are "
                "damaged, and HDF5 would not come back from reading them; copy the file again"
            )


def _read_attributes(opened: h5py.File, watched: _Watched) -> None:
    """Read those of all groups and datasets; what is damaged is left out, and the rest is not.

    At the first damaged heap it ends: HDF5 before 2.0 does not survive that it is shown nothing.
    """
    waiting: list[Any] = [opened]
    seen = {h5py.h5o.get_info(opened.id).addr}
    n_read = 0
    while waiting and n_read < MAX_ATTRIBUTES:
        node = waiting.pop()
        for name in _names(node.attrs):
            n_read += 1
            with suppress(*FOREIGN_ERRORS):
                node.attrs[name]
            if watched.damaged_at is not None:
                return
        for name in _names(node) if isinstance(node, h5py.Group) else ():
            with suppress(*FOREIGN_ERRORS):
                if isinstance(node.get(name, getlink=True), h5py.HardLink):
                    address = h5py.h5o.get_info(node.id, name.encode()).addr
                    if address not in seen:
                        seen.add(address)
                        waiting.append(node[name])


def _names(mapping: Any) -> list[str]:
    found: list[str] = []
    with suppress(*FOREIGN_ERRORS):
        found.extend(mapping)
    return found
