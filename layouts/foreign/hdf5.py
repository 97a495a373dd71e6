"""HDF5 files of others: coordinates by their places in the file, the rest by HDF5; damaged heaps.

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
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from h5py import h5t
from numpy.typing import NDArray

from mdio.core.errors import FOREIGN_ERRORS, CorruptLayoutError, SourceError
from mdio.core.files.reading import OpenFile
from mdio.core.frames import AtomIndices
from mdio.layouts.chunked.array import ChunksInFile

LARGEST_NBYTES = 64 << 20
"""Chunks are held in memory; HDF5 reads larger ones in parts."""
SLAB_NBYTES = 64 << 20
"""Frames are read this much at a time where HDF5 cannot read them into the output."""
NOWHERE = -1


class ForeignChunks(ChunksInFile):
    """An array (F, A, 3) of float32 in a file, uncompressed and without checksums."""

    def read(
        self, start: int, stop: int, atoms: AtomIndices | None, out: NDArray[np.float32]
    ) -> None:
        """Fill `out`; see `ChunkedArray.read`. Raises SourceError: a chunk is damaged."""
        try:
            super().read(start, stop, atoms, out)
        except CorruptLayoutError as error:
            raise SourceError(str(error)) from error


class Datasets:
    """Arrays of coordinates in an HDF5 file of others, whose chunks are looked for once.

    `path`: the file. `descriptor`: returns one of the file that is open already, if it is.
    """

    def __init__(self, path: Path, descriptor: Callable[[], int] | None = None) -> None:
        self._path, self._descriptor = path, descriptor
        self._bytes: OpenFile | None = None
        self._found: dict[str, ForeignChunks | None] = {}

    def chunks(self, name: str, dataset: h5py.Dataset) -> ForeignChunks | None:
        """Return the chunks of an array; None for what HDF5 has to read; see `chunks_of`."""
        if name not in self._found:
            if self._bytes is None:
                descriptor = -1 if self._descriptor is None else self._descriptor()
                self._bytes = OpenFile(self._path, descriptor=descriptor)
            self._found[name] = chunks_of(dataset, self._bytes)
        return self._found[name]

    def read(
        self,
        name: str,
        dataset: h5py.Dataset,
        start: int,
        stop: int,
        atoms: AtomIndices | None,
        out: NDArray[np.float32],
    ) -> None:
        """Fill `out` with frames of an array (F, A, 3), by HDF5 where it has to be."""
        chunks = self.chunks(name, dataset)
        if chunks is not None:
            chunks.read(start, stop, atoms, out)
            return
        if atoms is None and out.flags.c_contiguous:
            dataset.read_direct(out, np.s_[start:stop])
            return
        picked = np.arange(dataset.shape[1]) if atoms is None else atoms
        first, last = int(picked.min()), int(picked.max()) + 1
        n_rows = max(1, SLAB_NBYTES // (12 * (last - first)))
        if dataset.chunks is not None and n_rows > dataset.chunks[0]:
            n_rows -= n_rows % dataset.chunks[0]
        for begin in range(start, stop, n_rows):
            end = min(begin + n_rows, stop)
            rows = np.empty((end - begin, last - first, out.shape[2]), np.float32)
            dataset.read_direct(rows, np.s_[begin:end, first:last])
            out[begin - start : end - start] = rows[:, picked - first]

    def close(self) -> None:
        """Close the file, if it was opened here."""
        if self._bytes is not None:
            self._bytes.close()


SUPERBLOCK_NBYTES = 48
"""The least that the head of an HDF5 file takes (format specification, II.A), where no chunk is."""


def chunks_of(dataset: h5py.Dataset, file: OpenFile) -> ForeignChunks | None:
    """Return an array of coordinates of an HDF5 file; None for what HDF5 has to read.

    That is what is compressed or other than float32, has chunks that were never written (HDF5
    fills them), lies elsewhere, or is cut along x, y, z. Raises SourceError: a chunk lies where
    none can be, whoever reads it.
    """
    n_frames, n_atoms, _ = dataset.shape
    frames, atoms = (1, n_atoms) if dataset.chunks is None else dataset.chunks[:2]
    whole = dataset.dtype.itemsize * 3 * frames * atoms
    if (
        dataset.is_virtual
        or Path(dataset.file.filename) != file.path  # a link to another file
        or dataset.shape[2] != 3
        or (dataset.chunks is not None and dataset.chunks[2] != 3)
        or (dataset.chunks is not None and not hasattr(dataset.id, "chunk_iter"))
    ):
        return None
    offset = np.full((-(-n_frames // frames), -(-n_atoms // atoms)), NOWHERE, np.int64)
    if dataset.chunks is not None:

        def place(chunk: h5py.h5d.StoreInfo) -> None:
            (i, first), (j, second) = map(divmod, chunk.chunk_offset[:2], (frames, atoms))
            if first or second or chunk.chunk_offset[2] or j >= offset.shape[1]:
                raise SourceError(
                    f"{file.path}: {dataset.name} has a chunk at {chunk.chunk_offset}, where none "
                    f"of {dataset.chunks} begins; the file is damaged, copy it again"
                )
            if not SUPERBLOCK_NBYTES <= chunk.byte_offset < 1 << 63:
                raise SourceError(
                    f"{file.path}: {dataset.name} has a chunk at byte {chunk.byte_offset} of the "
                    "file, where none can be; the file is damaged, copy it again"
                )
            if chunk.size == whole and not chunk.filter_mask and i < len(offset):
                offset[i, j] = chunk.byte_offset

        dataset.id.chunk_iter(place)
    elif not dataset.external and dataset.id.get_offset() is not None:
        offset[:, 0] = dataset.id.get_offset() + whole * np.arange(n_frames)
    if (
        (offset < 0).any()
        or whole > LARGEST_NBYTES
        or dataset.dtype != "<f4"
        or h5t.py_create(dataset.dtype) != dataset.id.get_type()  # a float with another bias
        or dataset.id.get_create_plist().get_nfilters()
    ):
        return None
    return ForeignChunks(
        f"{file.path}: {dataset.name}",
        dataset.shape,
        (frames, atoms),
        file,
        offset,
        np.full(offset.shape, whole, np.int64),
        plain=True,
        verify=False,
        in_pieces=False,
    )


SIGNATURE = b"GCOL"
HEADER = struct.Struct("<4sB3xQ")
"""Signature, version, and bytes of the whole."""
OBJECT = struct.Struct("<H6xQ")
"""Number of an object, 0 for free space, and its bytes: without this header, with it if free."""
MAX_NBYTES = 1 << 28
"""Most bytes of a heap that is checked; one is as large as the longest string in it."""
MAX_ATTRIBUTES = 10_000
"""Attributes that are looked at: trajectories have a few dozen."""


class FileObject(ABC):
    """A file object for h5py, of so many bytes."""

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
        signature_offset = data.find(SIGNATURE)
        while signature_offset >= 0 and self.damaged_at is None:
            if not self._is_sound(begin + signature_offset):
                self.damaged_at = begin + signature_offset
            signature_offset = data.find(SIGNATURE, signature_offset + 1)
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
        position = HEADER.size
        while position + OBJECT.size <= len(heap):
            number, size = OBJECT.unpack_from(heap, position)
            position += OBJECT.size + size + -size % 8 if number else size
            if position > nbytes or (number == 0 and size < OBJECT.size):
                return False
        return True


def check_heaps(path: Path) -> None:
    """Read all attributes of an HDF5 file, as far as that is safe.

    Raises SourceError: a global heap is damaged.
    """
    with OpenFile(path) as file:
        watched = _Watched(file)
        with (
            suppress(*FOREIGN_ERRORS),  # the next opening reports what is wrong with it
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
    addresses = {h5py.h5o.get_info(opened.id).addr}
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
                    if address not in addresses:
                        addresses.add(address)
                        waiting.append(node[name])


def _names(mapping: Any) -> list[str]:
    names: list[str] = []
    with suppress(*FOREIGN_ERRORS):
        names.extend(mapping)
    return names
