"""The chunks of a per-atom array as they lie in its shards, verified as they are read."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mdio.core import kernels
from mdio.core.errors import CorruptLayoutError
from mdio.layouts.zarr.checksums import Checksums
from mdio.layouts.zarr.folder import Folder
from mdio.layouts.zarr.metadata import ArrayMetadata
from mdio.layouts.zarr.parts import Part
from mdio.layouts.zarr.pieces import PIECE_NBYTES, piece_crcs
from mdio.layouts.zarr.shard import CRC_NBYTES, Shard, ShardFiles

__all__ = ["StoredChunks"]

FloatArray = NDArray[np.float32]
Bytes = NDArray[np.uint8]


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
                "source anew",
            )
        if self.checksums.stored(number, column) not in (None, crc):
            raise self.corrupt(
                number,
                f"{shard.path}: not what was written there, though whole: a shard of another "
                "output, or another one of this, has its place; convert the source anew",
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
        found = piece_crcs(rows)
        start = number * self.chunk_frames + first
        n_pieces = len(found) // len(rows)
        expected = self.checksums.pieces(start, start + len(rows), column, piece, n_pieces)
        listed = expected.reshape(-1).tolist()
        if found != listed:
            pairs = zip(found, listed, strict=True)
            wrong = next(at for at, (crc, other) in enumerate(pairs) if crc != other)
            frame = start + wrong // n_pieces
            raise self.corrupt(
                number,
                f"{shard.path}: the checksum of frame {frame} is wrong; the file is damaged or "
                "not what was written there, convert the source anew",
            )

    def read_range(self, part: Part, column: int, begin: int, end: int) -> FloatArray:
        """Return bytes ``begin:end`` of the wanted frames of an uncompressed chunk, as numbers."""
        shard, offset, _ = self.locate(part.number, column)
        rows = np.empty((part.last - part.first, end - begin), np.uint8)
        for row, frame in enumerate(range(part.first, part.last)):
            shard.read_into([rows[row]], offset + frame * self.row_nbytes + begin)
        if self.in_pieces:
            piece = begin // PIECE_NBYTES
            self.verify_rows(part.number, part.first, column, shard, rows, piece)
        return rows.view("<f4")

    def encoded(self, number: int, column: int, verify: bool) -> tuple[Shard, Bytes]:
        """Return the bytes of a chunk as they lie on disk, checked."""
        shard, offset, nbytes = self.locate(number, column)
        data = shard.read(nbytes + CRC_NBYTES, offset)
        if verify:
            self.verify_chunk(number, column, shard, kernels.crc32c(data[:nbytes]), data[nbytes:])
        return shard, data[:nbytes]
