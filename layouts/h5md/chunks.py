"""Reads one array of our own H5MD files: chunk by chunk, without HDF5, every checksum verified."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from mdio.core.errors import CorruptLayoutError
from mdio.core.files.piece_sums import ROW_PIECE_NBYTES, changed, row_sums
from mdio.core.kernels import crc32c, gather_atoms, unshuffle
from mdio.layouts.h5md.io import (
    Handle,
    bytes_of,
    pread_at_once,
    pread_checksum,
    pread_exactly,
)
from mdio.layouts.h5md.places import AtomIndices, Part, PlacedChunks
from mdio.layouts.output import EncodedChunk
from mdio.layouts.plan import ArrayPlan

__all__ = ["ChunkedArray", "plans_of", "stored_chunks"]

DEFLATE_MAX_RATIO = 1100
"""zlib makes at most about 1,030 bytes of one; a chunk that claims more is damaged."""


class ChunkedArray(PlacedChunks):
    """One ``/particles/GROUP/ELEMENT/value`` of a file of ours.

    Whole chunks are read in one call, straight into the output where that is possible, and their
    checksums are verified. Of the chunks at the ends of a run of frames, and of frames much larger
    than the wanted atoms, only the pieces are read that hold what is wanted, if the chunks are not
    compressed, and verified by checksums of their own (files of older versions have none of these).
    Parameters are those of `PlacedChunks`.
    """

    def read(
        self,
        fd: Handle,
        start: int,
        stop: int,
        atoms: AtomIndices | None,
        out: NDArray[np.float32],
    ) -> None:
        """Fill `out`, (stop - start, k, 3), with frames ``start:stop`` of `atoms` (None = all).

        Raises
        ------
        CorruptLayoutError
            The file is truncated, or a checksum does not agree; names array and frames.
        """
        parts = self._all_parts if atoms is None else self._parts_of(atoms)
        for i in range(start // self.chunk_frames, -(-stop // self.chunk_frames)):
            first = i * self.chunk_frames
            lo, hi = max(start - first, 0), min(stop - first, self.chunk_frames)
            rows = out[first + lo - start : first + hi - start]
            for part in parts:
                if not self._read_direct(fd, i, part, lo, hi, rows):
                    self._read_through_scratch(fd, i, part, lo, hi, rows)

    def verify(self, fd: Handle, i: int, j: int) -> None:
        """Read one chunk and check it; raises CorruptLayoutError."""
        self._held = None
        self._compare(i, j, crc32c(self._load(fd, i, j)))

    def _read_direct(
        self, fd: Handle, i: int, part: Part, lo: int, hi: int, rows: NDArray[np.float32]
    ) -> bool:
        """Read frames ``lo:hi`` of a chunk into `rows` without a copy, if that is possible."""
        if not self._in_rows or part.atoms is not None or not rows.flags.c_contiguous:
            return False
        n_valid = min(self.chunk_frames, self.n_frames - i * self.chunk_frames)
        offset = int(self._offset[i, 0])
        if hi - lo < n_valid:
            if self._held == (i, part.j):
                return False
            offset += lo * 12 * self.chunk_atoms
            if not pread_at_once(fd, rows, offset):
                pread_exactly(fd, rows, offset, self.name_of(i, 0))
            self._check_pieces(fd, i, 0, lo, rows)
            return True
        if self._trusted:
            pread_exactly(fd, rows, offset, self.name_of(i, 0))
            return True
        checksum = pread_checksum(fd, rows, offset, self.name_of(i, 0))
        if rows.nbytes < self._nbytes[i, 0]:  # the zeros behind the last frame
            padding = np.empty((self.chunk_frames - n_valid, self.chunk_atoms, 3), np.float32)
            pread_exactly(fd, padding, offset + rows.nbytes, self.name_of(i, 0))
            checksum = crc32c(padding, checksum)
        self._compare(i, 0, checksum)
        return True

    def _read_through_scratch(
        self, fd: Handle, i: int, part: Part, lo: int, hi: int, rows: NDArray[np.float32]
    ) -> None:
        n_valid = min(self.chunk_frames, self.n_frames - i * self.chunk_frames)
        first, last, narrow = self._span(part)
        if self._held == (i, part.j) or self.deflated or (hi - lo == n_valid and not narrow):
            source = self._chunk(fd, i, part.j)[lo:hi]
            first = 0
        elif narrow:
            source = self._frame_by_frame(fd, i, part.j, lo, hi, first, last)
        else:
            source = np.empty((hi - lo, self.chunk_atoms, 3), np.float32)
            offset = int(self._offset[i, part.j]) + lo * 12 * self.chunk_atoms
            pread_exactly(fd, source, offset, self.name_of(i, part.j))
            self._check_pieces(fd, i, part.j, lo, source)
            first = 0
        if part.atoms is None:
            rows[:, part.target] = source[:, : last - first]
        elif isinstance(part.target, slice):
            gather_atoms(source, part.atoms - first, rows[:, part.target])
        else:
            rows[:, part.target] = source[:, part.atoms - first]

    def _frame_by_frame(
        self, fd: Handle, i: int, j: int, lo: int, hi: int, first: int, last: int
    ) -> NDArray[np.float32]:
        """Return some atoms; whole pieces are read and verified."""
        row_nbytes = 12 * self.chunk_atoms
        begin, end = self._widened(first, last)
        source = np.empty((hi - lo, (end - begin) // 4), np.float32)
        offset = int(self._offset[i, j]) + begin
        for k in range(lo, hi):
            pread_exactly(fd, source[k - lo], offset + k * row_nbytes, self.name_of(i, j))
        self._check_pieces(fd, i, j, lo, source, begin // ROW_PIECE_NBYTES)
        at = (12 * first - begin) // 4
        return source[:, at : at + 3 * (last - first)].reshape(hi - lo, -1, 3)

    def _check_pieces(
        self, fd: Handle, i: int, j: int, lo: int, rows: NDArray[np.float32], piece: int = 0
    ) -> None:
        """Compare rows of a chunk, from its frame `lo` and from a piece of each on."""
        if self.pieces is None or self._trusted:
            return
        first = i * self.chunk_frames + lo
        table = self.pieces.read(fd, first, first + len(rows), f"{self.what}, checksums")[:, j]
        found = row_sums(rows)
        n_pieces = len(found) // len(rows)
        expected = table[:, piece : piece + n_pieces]
        wrong = changed(found, expected)
        if wrong is not None:
            raise CorruptLayoutError(
                f"{self.name_of(i, j)}: in frame {first + wrong // n_pieces}, crc32c "
                f"{found[wrong]:08x} found, {expected.flat[wrong]:08x} expected; the file is "
                "damaged: convert the source again"
            )

    def _chunk(self, fd: Handle, i: int, j: int) -> NDArray[np.float32]:
        """Return a whole chunk, verified; the last one stays in memory."""
        if self._held != (i, j) or self._scratch is None:
            stored = self._load(fd, i, j)
            if not self._trusted:
                self._compare(i, j, crc32c(stored))
            self._held = (i, j)
        assert self._scratch is not None
        return self._scratch

    def _load(self, fd: Handle, i: int, j: int) -> NDArray[np.float32]:
        """Read a chunk into memory, and return what of it is stored."""
        nbytes = 12 * self.chunk_frames * self.chunk_atoms
        if self.deflated and nbytes > DEFLATE_MAX_RATIO * int(self._nbytes[i, j]):
            raise CorruptLayoutError(
                f"{self.name_of(i, j)}: {self._nbytes[i, j]} bytes cannot hold {nbytes}; "
                "convert the source again"
            )
        if self._scratch is None:
            self._scratch = np.empty((self.chunk_frames, self.chunk_atoms, 3), np.float32)
        self._held = None
        stored = self._scratch.reshape(-1)
        if self.deflated:
            self._decode(fd, i, j, self._scratch)
        else:
            stored = stored[: int(self._nbytes[i, j]) // 4]  # less at the end of an array
            pread_exactly(fd, stored, int(self._offset[i, j]), self.name_of(i, j))
        return stored

    def _decode(self, fd: Handle, i: int, j: int, out: NDArray[np.float32]) -> None:
        stored = np.empty(int(self._nbytes[i, j]), np.uint8)
        pread_exactly(fd, stored, int(self._offset[i, j]), self.name_of(i, j))
        inflater = zlib.decompressobj()
        try:
            data = inflater.decompress(bytes_of(stored), out.nbytes)
        except zlib.error as error:
            raise CorruptLayoutError(
                f"{self.name_of(i, j)}: cannot be decompressed ({error}); the file is damaged: "
                "convert the source again"
            ) from error
        if len(data) != out.nbytes:
            raise CorruptLayoutError(
                f"{self.name_of(i, j)}: {len(data)} bytes after decompression, expected "
                f"{out.nbytes}; the file is damaged: convert the source again"
            )
        if self._shuffled:
            unshuffle(data, out.itemsize, bytes_of(out))
        else:
            out[...] = np.frombuffer(data, np.float32).reshape(out.shape)

    def _compare(self, i: int, j: int, checksum: int) -> None:
        expected = int(self.crcs[i, j])
        if checksum != expected:
            raise CorruptLayoutError(
                f"{self.name_of(i, j)}: crc32c {checksum:08x} found, {expected:08x} expected; the "
                "file is damaged: convert the source again"
            )


Arrays = Mapping[tuple[str, str], ChunkedArray]
"""By group and field."""


def plans_of(arrays: Arrays, *, contiguous: bool) -> tuple[ArrayPlan, ...]:
    """Return how arrays are cut into chunks."""
    return tuple(
        ArrayPlan(*of, one.n_atoms, one.chunk_frames, one.chunk_atoms, contiguous)
        for of, one in arrays.items()
    )


def stored_chunks(arrays: Arrays, fd: Handle, start: int, stop: int) -> Iterator[EncodedChunk]:
    """Yield the chunks of frames ``start:stop`` of all arrays, each checked.

    Raises
    ------
    CorruptLayoutError
        One of them is not what was written.
    """
    for (group, field), array in arrays.items():
        rows = range(start // array.chunk_frames, -(-stop // array.chunk_frames))
        for i, j in ((i, j) for i in rows for j in range(array.grid[1])):
            array.verify(fd, i, j)
            offset, nbytes = (int(table[i, j]) for table in array.places)
            data = np.empty(nbytes, np.uint8)
            pread_exactly(fd, data, offset, array.name_of(i, j))
            crcs = [int(array.crcs[i, j])]
            if not array.deflated:
                crcs += row_sums(data.reshape(-1, 12 * array.chunk_atoms)).tolist()
            yield EncodedChunk(f"{group}/{field}/{i}/{j}", data, crcs)
