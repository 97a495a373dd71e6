"""The chunks of a per-atom array as they lie in its shards, verified as they are read."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from mdio.core import kernels
from mdio.core.errors import CorruptLayoutError
from mdio.core.files.piece_sums import ROW_PIECE_NBYTES, changed, row_sums, widened
from mdio.core.files.requests import ByteRange
from mdio.layouts.zarr.checksums import Checksums
from mdio.layouts.zarr.folder import Folder
from mdio.layouts.zarr.metadata import ArrayMetadata
from mdio.layouts.zarr.parts import Part, parts_of
from mdio.layouts.zarr.shard import CRC_NBYTES, Shard, ShardFiles

__all__ = ["StoredChunks", "range_of"]

FloatArray = NDArray[np.float32]
AtomIndices = NDArray[np.int64]
Bytes = NDArray[np.uint8]

NARROW_SHARE = 4
"""Only the pieces of the wanted atoms are read if they are at most this part of a frame ..."""
NARROW_FRAME_NBYTES = 64 << 10
"""... and frames are at least this large: below, reading all costs less than the calls it saves."""


class StoredChunks:
    """The bytes of a per-atom array.

    Parameters
    ----------
    root
        Of the tree.
    name
        Of the array in it.
    metadata
        What its ``zarr.json`` says; shape (frames, atoms, 3), float32.
    checksums
        What is read should have these.
    verify
        Whether it is compared with them.
    """

    def __init__(
        self,
        root: Folder,
        name: str,
        metadata: ArrayMetadata,
        checksums: Checksums,
        *,
        verify: bool,
    ) -> None:
        self._name = name
        self.metadata = metadata
        self.checksums = checksums
        self.verifies = verify
        self.n_frames, self.n_atoms, _ = metadata.shape
        self.chunk_frames, self.chunk_atoms, _ = metadata.chunk_shape
        self.frames_per_shard, self.n_atom_chunks, _ = metadata.chunks_per_file
        self.plain = metadata.plain
        self._chunk_nbytes = metadata.chunk_nbytes
        self.row_nbytes = 12 * self.chunk_atoms
        self.in_pieces = self.plain and verify and checksums.has_pieces
        self._files = ShardFiles(root, name, metadata)

    def close(self) -> None:
        """Close files."""
        self._files.close()

    def locate(self, number: int, column: int) -> tuple[Shard, int, int]:
        """Return the shard of a chunk, and offset and size of the chunk in it."""
        file_number, row = divmod(number, self.frames_per_shard)
        try:
            shard = self._files[file_number]
            offset, nbytes = shard.span(row * self.n_atom_chunks + column)
        except CorruptLayoutError as error:
            raise self.corrupt(number, str(error)) from error
        if self.plain and nbytes != self._chunk_nbytes:
            raise self.corrupt(
                number, f"{shard.path}: a chunk of {nbytes} bytes, not {self._chunk_nbytes}"
            )
        return shard, offset, nbytes

    def narrow(self, atoms: AtomIndices | None, n_atoms: int) -> tuple[int, int] | None:
        """Return which bytes of each frame's row are read, if not all, for atoms of a chunk."""
        if not self.plain:
            return None
        low, high = range_of(atoms, n_atoms)
        begin, end = 12 * low, 12 * high
        if self.in_pieces:
            begin, end = widened(begin, end, self.row_nbytes)
        few = (end - begin) * NARROW_SHARE <= self.row_nbytes
        return (begin, end) if few and self.row_nbytes >= NARROW_FRAME_NBYTES else None

    def byte_ranges(self, start: int, stop: int, atoms: AtomIndices | None) -> Iterator[ByteRange]:
        """Yield what reading frames takes of shards; raises what it raises."""
        for part in parts_of(start, stop, self.chunk_frames, self.n_frames):
            for column in range(self.n_atom_chunks):
                begin = column * self.chunk_atoms
                of_chunk = atoms
                if atoms is not None and self.n_atom_chunks > 1:
                    of_chunk = atoms[(atoms >= begin) & (atoms < begin + self.chunk_atoms)] - begin
                    if not of_chunk.size:
                        continue
                shard, offset, nbytes = self.locate(part.number, column)
                narrow = self.narrow(of_chunk, min(self.chunk_atoms, self.n_atoms - begin))
                if narrow is not None:
                    at, nbytes = narrow[0], narrow[1] - narrow[0]
                    for frame in range(part.first, part.last):
                        yield ByteRange(shard.file, offset + frame * self.row_nbytes + at, nbytes)
                elif self.plain and not part.whole:
                    offset += part.first * self.row_nbytes
                    nbytes = (part.last - part.first) * self.row_nbytes
                    yield ByteRange(shard.file, offset, nbytes)
                else:
                    yield ByteRange(shard.file, offset, nbytes + CRC_NBYTES)

    def corrupt(self, number: int, problem: str) -> CorruptLayoutError:
        """Return an error that tells of the frames of a chunk."""
        begin = number * self.chunk_frames
        end = min(begin + self.chunk_frames, self.n_frames)
        return CorruptLayoutError(f"{problem} (frames {begin} to {end - 1})")

    def verify_chunk(self, number: int, column: int, shard: Shard, crc: int, stored: Bytes) -> None:
        """Compare a chunk with what the file says of it, and with what the output does."""
        if crc != int.from_bytes(stored.tobytes(), "little"):
            raise self.corrupt(
                number,
                f"{shard.path}: the checksum of a chunk is wrong; the file is damaged, convert the "
                "source again",
            )
        if self.checksums.stored(number, column) not in (None, crc):
            raise self.corrupt(
                number,
                f"{shard.path}: not what was written there, though whole: a shard of another "
                "output, or another one of this, has its place; convert the source again",
            )

    def verify_rows(
        self, number: int, first: int, column: int, shard: Shard, rows: Bytes, piece: int = 0
    ) -> None:
        """Compare frames of a chunk, or the same pieces of each, with the tables.

        Parameters
        ----------
        number, column
            Of the chunk.
        first
            Of the frames, within the chunk.
        rows : (frames, bytes) uint8
            From `piece` on.
        """
        found = row_sums(rows)
        start, n_rows = number * self.chunk_frames + first, len(rows)
        n_pieces = len(found) // n_rows
        wrong = changed(
            found, self.checksums.pieces(start, start + n_rows, column, piece, n_pieces)
        )
        if wrong is not None:
            frame = start + wrong // n_pieces
            raise self.corrupt(
                number,
                f"{shard.path}: the checksum of frame {frame} is wrong; the file is "
                "damaged or not what was written there, convert the source again",
            )

    def read_range(self, part: Part, column: int, begin: int, end: int) -> FloatArray:
        """Return bytes ``begin:end`` of the wanted frames of an uncompressed chunk, as numbers."""
        shard, offset, _ = self.locate(part.number, column)
        rows = np.empty((part.last - part.first, end - begin), np.uint8)
        for row, frame in enumerate(range(part.first, part.last)):
            shard.read_into([rows[row]], offset + frame * self.row_nbytes + begin)
        if self.in_pieces:
            piece = begin // ROW_PIECE_NBYTES
            self.verify_rows(part.number, part.first, column, shard, rows, piece)
        return rows.view("<f4")

    def encoded(self, number: int, column: int, verify: bool) -> tuple[Shard, Bytes]:
        """Return the bytes of a chunk as they lie on disk, checked."""
        shard, offset, nbytes = self.locate(number, column)
        data = shard.read(nbytes + CRC_NBYTES, offset)
        if verify:
            self.verify_chunk(number, column, shard, kernels.crc32c(data[:nbytes]), data[nbytes:])
        return shard, data[:nbytes]


def range_of(atoms: AtomIndices | None, n_atoms: int) -> tuple[int, int]:
    """Return the first of the atoms and the one behind their last."""
    return (0, n_atoms) if atoms is None else (int(atoms.min()), int(atoms.max()) + 1)
