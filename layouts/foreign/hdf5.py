"""HDF5 files of other programs: coordinates by their offsets, the rest through HDF5; damaged heaps.

Strings of variable length are in global heaps (HDF5 File Format Specification 3.0, III.E): 4 KiB or
more of consecutive objects, each with its size. If a damaged size makes an object its own
successor, HDF5 loops forever, in a call that nothing interrupts. Therefore the attributes of such a
file are first read through a file object that checks all heaps that HDF5 reads, and returns zeros
for a damaged one.
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

MAX_CHUNK_NBYTES = 64 << 20
"""Chunks are kept in memory; arrays with larger chunks are read through HDF5, in parts."""
SLAB_NBYTES = 64 << 20
"""Bytes that are read at a time if HDF5 cannot read into the caller's array."""
MAX_COMPRESSION_RATIO = 100_000
"""No trajectory compresses so well: a dataset that is larger by more was never written."""


def has_plausible_size(dataset: h5py.Dataset) -> bool:
    """Return whether the file can hold all numbers that a dataset of it claims."""
    return bool(dataset.nbytes <= MAX_COMPRESSION_RATIO * max(dataset.id.get_storage_size(), 1))


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
    """Arrays of coordinates in an HDF5 file, whose chunks are located once."""

    def __init__(self, path: Path, descriptor: Callable[[], int] | None = None) -> None:
        self._path, self._descriptor = path, descriptor
        self._file: OpenFile | None = None
        self._chunks_by_name: dict[str, ForeignChunks | None] = {}

    def chunks(self, name: str, dataset: h5py.Dataset) -> ForeignChunks | None:
        """Return the chunks of an array; None if HDF5 must read it; see `chunks_of`."""
        if name not in self._chunks_by_name:
            if self._file is None:
                descriptor = -1 if self._descriptor is None else self._descriptor()
                self._file = OpenFile(self._path, descriptor=descriptor)
            self._chunks_by_name[name] = chunks_of(dataset, self._file)
        return self._chunks_by_name[name]

    def read(
        self,
        name: str,
        dataset: h5py.Dataset,
        start: int,
        stop: int,
        atoms: AtomIndices | None,
        out: NDArray[np.float32],
    ) -> None:
        """Fill `out` with frames of an array (F, A, 3), through HDF5 if necessary."""
        chunks = self.chunks(name, dataset)
        if chunks is not None:
            chunks.read(start, stop, atoms, out)
            return
        if atoms is None and out.flags.c_contiguous:
            dataset.read_direct(out, np.s_[start:stop])
            return
        indices = np.arange(dataset.shape[1]) if atoms is None else atoms
        first_atom, stop_atom = int(indices.min()), int(indices.max()) + 1
        n_rows = max(1, SLAB_NBYTES // (12 * (stop_atom - first_atom)))
        if dataset.chunks is not None and n_rows > dataset.chunks[0]:
            n_rows -= n_rows % dataset.chunks[0]
        for begin in range(start, stop, n_rows):
            end = min(begin + n_rows, stop)
            rows = np.empty((end - begin, stop_atom - first_atom, out.shape[2]), np.float32)
            dataset.read_direct(rows, np.s_[begin:end, first_atom:stop_atom])
            out[begin - start : end - start] = rows[:, indices - first_atom]

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


MIN_SUPERBLOCK_NBYTES = 48
"""Least bytes of the superblock of an HDF5 file (format specification, II.A): no chunk is in it."""


def chunks_of(dataset: h5py.Dataset, file: OpenFile) -> ForeignChunks | None:
    """Return the chunks of an array of coordinates; None if HDF5 must read it.

    HDF5 reads arrays that are compressed or not float32, have chunks that were never written (it
    fills them), are in another file, or are divided along x, y, z.
    """
    n_frames, n_atoms, _ = dataset.shape
    chunk_frames, chunk_atoms = (1, n_atoms) if dataset.chunks is None else dataset.chunks[:2]
    chunk_nbytes = dataset.dtype.itemsize * 3 * chunk_frames * chunk_atoms
    if (
        dataset.is_virtual
        or Path(dataset.file.filename) != file.path  # a link to another file
        or dataset.shape[2] != 3
        or (dataset.chunks is not None and dataset.chunks[2] != 3)
        or (dataset.chunks is not None and not hasattr(dataset.id, "chunk_iter"))
    ):
        return None
    offset = np.full((-(-n_frames // chunk_frames), -(-n_atoms // chunk_atoms)), -1, np.int64)
    if dataset.chunks is not None:

        def set_offset(chunk: h5py.h5d.StoreInfo) -> None:
            (row, frame_rest), (column, atom_rest) = map(
                divmod, chunk.chunk_offset[:2], (chunk_frames, chunk_atoms)
            )
            if frame_rest or atom_rest or chunk.chunk_offset[2] or column >= offset.shape[1]:
                raise SourceError(
                    f"{file.path}: {dataset.name} has a chunk at {chunk.chunk_offset}, where none "
                    f"of {dataset.chunks} begins; the file is damaged, copy it again"
                )
            if not MIN_SUPERBLOCK_NBYTES <= chunk.byte_offset < 1 << 63:
                raise SourceError(
                    f"{file.path}: {dataset.name} has a chunk at byte {chunk.byte_offset} of the "
                    "file, where none can be; the file is damaged, copy it again"
                )
            if chunk.size == chunk_nbytes and not chunk.filter_mask and row < len(offset):
                offset[row, column] = chunk.byte_offset

        dataset.id.chunk_iter(set_offset)
    elif not dataset.external and dataset.id.get_offset() is not None:
        offset[:, 0] = dataset.id.get_offset() + chunk_nbytes * np.arange(n_frames)
    if (
        (offset < 0).any()
        or chunk_nbytes > MAX_CHUNK_NBYTES
        or dataset.dtype != "<f4"
        or h5t.py_create(dataset.dtype) != dataset.id.get_type()  # a float with another bias
        or dataset.id.get_create_plist().get_nfilters()
    ):
        return None
    return ForeignChunks(
        f"{file.path}: {dataset.name}",
        dataset.shape,
        (chunk_frames, chunk_atoms),
        file,
        offset,
        np.full(offset.shape, chunk_nbytes, np.int64),
        uncompressed=True,
        verify=False,
        has_span_checksums=False,
    )


HEAP_SIGNATURE = b"GCOL"
HEAP_HEADER = struct.Struct("<4sB3xQ")
"""Signature, version, and bytes of the heap."""
OBJECT_HEADER = struct.Struct("<H6xQ")
"""Number of an object, 0 for free space, and its bytes, which include this header in free space."""
MAX_HEAP_NBYTES = 1 << 28
"""Most bytes of a heap that are checked; a heap may be as large as its longest string."""
MAX_ATTRIBUTES = 10_000
"""Most attributes that are checked; trajectories have a few dozen."""


class FileObject(ABC):
    """A file object for h5py, of `nbytes`."""

    def __init__(self, nbytes: int) -> None:
        self._position, self._nbytes = 0, nbytes

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        begin = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._nbytes}[whence]
        self._position = begin + offset
        return self._position

    def tell(self) -> int:
        return self._position

    def read(self, nbytes: int) -> bytes:
        """Return bytes; h5py recognises file objects by this method."""
        data = bytearray(nbytes)
        self.readinto(data)
        return bytes(data)

    @abstractmethod
    def readinto(self, target: Any) -> int:
        """Fill a buffer; zeros after the end of the file."""


class _HeapChecker(FileObject):
    def __init__(self, file: OpenFile) -> None:
        super().__init__(file.nbytes)
        self.damaged_offset: int | None = None
        self._file = file

    def readinto(self, target: Any) -> int:
        """Fill a buffer; zeros after the end of the file, and once a heap is damaged."""
        view = memoryview(target).cast("B")
        # The last read may have ended within a signature.
        begin = max(0, self._position - len(HEAP_SIGNATURE))
        data = self._file.peek(begin, self._position + len(view) - begin)
        signature_offset = data.find(HEAP_SIGNATURE)
        while signature_offset >= 0 and self.damaged_offset is None:
            if not self._is_intact(begin + signature_offset):
                self.damaged_offset = begin + signature_offset
            signature_offset = data.find(HEAP_SIGNATURE, signature_offset + 1)
        data = b"" if self.damaged_offset is not None else data[self._position - begin :]
        view[:] = data.ljust(len(view), b"\0")
        self._position += len(view)
        return len(view)

    def _is_intact(self, offset: int) -> bool:
        head = self._file.peek(offset, HEAP_HEADER.size)
        if len(head) < HEAP_HEADER.size:
            return True  # HDF5 reports that
        nbytes = HEAP_HEADER.unpack(head)[2]
        heap = self._file.peek(offset, min(nbytes, MAX_HEAP_NBYTES))
        position = HEAP_HEADER.size
        while position + OBJECT_HEADER.size <= len(heap):
            number, size = OBJECT_HEADER.unpack_from(heap, position)
            position += OBJECT_HEADER.size + size + -size % 8 if number else size
            if position > nbytes or (number == 0 and size < OBJECT_HEADER.size):
                return False
        return True


def check_heaps(path: Path) -> None:
    """Read the attributes of an HDF5 file, up to the first damaged heap; raises SourceError."""
    with OpenFile(path) as file:
        checker = _HeapChecker(file)
        with (
            suppress(*FOREIGN_ERRORS),  # opening it next reports them
            h5py.File(checker, "r") as h5file,
        ):
            _read_attributes(h5file, checker)
        if checker.damaged_offset is not None:
            raise SourceError(
                f"{path}: the strings at byte {checker.damaged_offset} (a global heap of HDF5) are "
                "damaged, and HDF5 would never finish reading them; copy the file again"
            )


def _read_attributes(h5file: h5py.File, checker: _HeapChecker) -> None:
    """Read the attributes of all groups and datasets, skipping those that cannot be read.

    It ends at the first damaged heap, which is read as zeros: HDF5 before 2.0 would crash on them.
    """
    nodes: list[Any] = [h5file]
    addresses = {h5py.h5o.get_info(h5file.id).addr}
    n_read = 0
    while nodes and n_read < MAX_ATTRIBUTES:
        node = nodes.pop()
        for name in _names(node.attrs):
            n_read += 1
            with suppress(*FOREIGN_ERRORS):
                node.attrs[name]
            if checker.damaged_offset is not None:
                return
        for name in _names(node) if isinstance(node, h5py.Group) else ():
            with suppress(*FOREIGN_ERRORS):
                if isinstance(node.get(name, getlink=True), h5py.HardLink):
                    address = h5py.h5o.get_info(node.id, name.encode()).addr
                    if address not in addresses:
                        addresses.add(address)
                        nodes.append(node[name])


def _names(mapping: Any) -> list[str]:
    names: list[str] = []
    with suppress(*FOREIGN_ERRORS):
        names.extend(mapping)
    return names
