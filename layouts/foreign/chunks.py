"""Coordinates of others in chunks: found by their places in the file, and decoded without HDF5."""

from __future__ import annotations

import zlib
from pathlib import Path

import h5py
import numpy as np
from h5py import h5z
from numpy.typing import NDArray

from mdio.core.errors import CorruptLayoutError, SourceError
from mdio.core.files.piece_sums import Sums
from mdio.core.files.reading import OpenFile
from mdio.core.kernels import unshuffle
from mdio.layouts.chunked.array import ChunkedArray
from mdio.layouts.chunked.grid import AtomIndices

LARGEST_NBYTES = 64 << 20
"""Chunks are held in memory; HDF5 reads larger ones in parts."""
NOWHERE = -1
FLOAT32 = np.dtype("<f4")


class ForeignChunks(ChunkedArray):
    """An array (F, A, 3) whose chunks lie in a file, without checksums.

    `what`: file and array, for messages. `chunk`: frames and atoms in one. `offset`, `nbytes`,
    (frame chunks, atom chunks): of each as it is stored. `dtype`: of its numbers. `deflated`,
    `shuffled`: the filters of HDF5 that they went through. `per_one`: how many of its integers make
    one.
    """

    decodes_parts = True

    def __init__(
        self,
        what: str,
        shape: tuple[int, ...],
        chunk: tuple[int, int],
        file: OpenFile,
        offset: NDArray[np.int64],
        nbytes: NDArray[np.int64],
        dtype: np.dtype[np.generic] = FLOAT32,
        *,
        deflated: bool = False,
        shuffled: bool = False,
        per_one: float | None = None,
    ) -> None:
        plain = not (deflated or shuffled) and dtype == FLOAT32 and per_one is None
        super().__init__(what, shape, chunk, plain=plain, verify=False, in_pieces=False)
        self._file, self._offset, self._nbytes = file, offset, nbytes
        self._dtype, self._deflated, self._shuffled = dtype, deflated, shuffled
        self._per_one = per_one

    def read(
        self, start: int, stop: int, atoms: AtomIndices | None, out: NDArray[np.float32]
    ) -> None:
        """Fill `out`; see `ChunkedArray.read`. Raises SourceError: a chunk is damaged."""
        try:
            super().read(start, stop, atoms, out)
        except CorruptLayoutError as error:
            raise SourceError(str(error)) from error

    def locate(self, i: int, j: int) -> tuple[OpenFile, int, int]:
        """Return the file, and offset and size of a chunk."""
        return self._file, int(self._offset[i, j]), int(self._nbytes[i, j])

    def corrupt(self, i: int, j: int, file: OpenFile, problem: str) -> CorruptLayoutError:  # noqa: ARG002
        """Return an error that tells of a chunk."""
        return CorruptLayoutError(f"{self.name_of(i, j)}: {problem}")

    def _compare(self, i: int, j: int, file: OpenFile, crc: int, _: NDArray[np.uint8]) -> None:
        raise NotImplementedError  # there is nothing to compare with

    def _pieces(self, start: int, stop: int, j: int, first: int, n_pieces: int) -> Sums:
        raise NotImplementedError

    def _decode(
        self,
        data: NDArray[np.uint8],
        out: NDArray[np.float32],
        atoms: AtomIndices | None,
        last: int,
    ) -> None:
        shape = (self.chunk_frames, self.chunk_atoms, 3)
        nbytes = self._dtype.itemsize * 3 * self.chunk_frames * self.chunk_atoms
        raw: bytes | NDArray[np.uint8] = data
        if self._deflated:
            stream = zlib.decompressobj()
            try:  # one byte more: zlib compares its checksum at the end alone
                raw = stream.decompress(data.data, nbytes + 1)
            except zlib.error as error:
                raise ValueError(f"{error}; the file may be damaged") from error
            if not stream.eof and len(raw) == nbytes:
                raise ValueError("its end is missing; the file may be damaged")
        if len(raw) != nbytes:
            raise ValueError(f"it has {len(raw)} bytes, expected {nbytes}")
        if self._shuffled:
            room = np.empty(nbytes, np.uint8)
            unshuffle(raw, self._dtype.itemsize, room)
            raw = room
        values = np.frombuffer(raw, self._dtype).reshape(shape)[:last]
        values = values if atoms is None else values[:, atoms]
        if self._per_one is None:
            out[...] = values
        else:
            np.divide(values, self._per_one, out=out, casting="unsafe", dtype=np.float64)


def chunks_of(
    dataset: h5py.Dataset, file: OpenFile, per_one: float | None = None
) -> ForeignChunks | None:
    """Return an array of coordinates of an HDF5 file; None for what HDF5 has to read.

    That is what went through other filters than shuffle and deflate, has chunks that were never
    written (HDF5 fills them), lies elsewhere, or is cut along x, y, z. `per_one`: see
    `ForeignChunks`.
    """
    n_frames, n_atoms, _ = dataset.shape
    frames, atoms = (1, n_atoms) if dataset.chunks is None else dataset.chunks[:2]
    whole = dataset.dtype.itemsize * 3 * frames * atoms
    kept = dataset.id.get_create_plist()
    filters = [kept.get_filter(at)[0] for at in range(kept.get_nfilters())]
    if (
        dataset.dtype.kind not in "fiu"
        or dataset.is_virtual
        or Path(dataset.file.filename) != file.path  # a link to another file
        or filters not in ([], [h5z.FILTER_DEFLATE], [h5z.FILTER_SHUFFLE, h5z.FILTER_DEFLATE])
        or whole > LARGEST_NBYTES
        or (dataset.chunks is not None and dataset.chunks[2] != 3)
        or (dataset.chunks is not None and not hasattr(dataset.id, "chunk_iter"))
    ):
        return None
    offset = np.full((-(-n_frames // frames), -(-n_atoms // atoms)), NOWHERE, np.int64)
    nbytes = np.full(offset.shape, whole, np.int64)
    if dataset.chunks is not None:

        def place(found: h5py.h5d.StoreInfo) -> None:
            (i, first), (j, second) = map(divmod, found.chunk_offset[:2], (frames, atoms))
            if first or second or found.chunk_offset[2] or j >= offset.shape[1]:
                raise SourceError(
                    f"{file.path}: {dataset.name} has a chunk at {found.chunk_offset}, where none "
                    f"of {dataset.chunks} begins; the file is damaged, copy it again"
                )
            if (filters or found.size == whole) and not found.filter_mask and i < len(offset):
                offset[i, j], nbytes[i, j] = found.byte_offset, found.size

        dataset.id.chunk_iter(place)
    elif not dataset.external and dataset.id.get_offset() is not None:
        offset[:, 0] = dataset.id.get_offset() + whole * np.arange(n_frames)
    if (offset < 0).any() or (nbytes > whole + LARGEST_NBYTES).any():
        return None
    return ForeignChunks(
        f"{file.path}: {dataset.name}",
        dataset.shape,
        (frames, atoms),
        file,
        offset,
        nbytes,
        dataset.dtype,
        deflated=h5z.FILTER_DEFLATE in filters,
        shuffled=h5z.FILTER_SHUFFLE in filters,
        per_one=per_one,
    )
