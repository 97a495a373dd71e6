"""The checksums that a tree holds of a per-atom array, by which whatever is read is verified.

========================== ============================ =========================================
array under ``/mdio``      shape                        crc32c of
========================== ============================ =========================================
``crc32c/G/F``             chunks: (frames, atoms)      a chunk, decoded
``crc32c_stored/G/F``      chunks: (frames, atoms)      a chunk's bytes on disk, where it is encoded
``crc32c_pieces/G/F``      frames, pieces of a frame    a frame's row of an uncompressed chunk, or
                                                        runs of 64 KiB of it where it is larger
========================== ============================ =========================================

G is a particle group, F a field. Trees of older versions have the first only.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mdio.layouts.zarr.series import SeriesArray

Crcs = NDArray[np.uint32]


class Checksums:
    """The tables of one array; they are read when they are first needed.

    `decoded`: of chunks. `stored`: of chunks as they lie on disk, None where there is no table of
    them. Of an uncompressed array it is `decoded`. `pieces`: of the pieces of frames, None where
    there is no table of them. `pieces_per_row`: of each column of chunks.
    """

    def __init__(
        self,
        decoded: SeriesArray,
        stored: SeriesArray | None,
        pieces: SeriesArray | None,
        pieces_per_row: int,
    ) -> None:
        self._decoded = decoded
        self._stored = stored
        self._pieces = pieces
        self._pieces_per_row = pieces_per_row
        self.has_pieces = pieces is not None

    def look_ahead(self, start: int, stop: int, *, whole: bool, parts: bool) -> None:
        """Ask for the tables that reading frames ``start:stop`` takes, where they are objects.

        `whole`, `parts`: whether some chunks are read as a whole, and whether some in part.
        """
        if self._stored is not None and (whole or self._pieces is None):
            self._stored.look_ahead(0, 1)
        if self._pieces is not None and parts:
            self._pieces.look_ahead(start, stop)

    def read(self) -> None:
        """Read all tables once; raises CorruptLayoutError."""
        for table in (self._decoded, self._stored, self._pieces):
            if table is not None:
                for number in range(table.metadata.n_files):
                    table.file(number)

    def decoded(self, number: int, column: int) -> int:
        """Return that of a chunk, decoded."""
        return int(self._decoded.file(0)[number, column])

    def stored(self, number: int, column: int) -> int | None:
        """Return that of a chunk as it lies on disk, None if there is none."""
        return None if self._stored is None else int(self._stored.file(0)[number, column])

    def pieces(self, start: int, stop: int, column: int, first: int, n_pieces: int) -> Crcs:
        """Return those of frames ``start:stop`` of a column of chunks, from piece `first` on."""
        assert self._pieces is not None
        first += column * self._pieces_per_row
        return self._pieces.rows(start, stop)[:, first : first + n_pieces]

    def of_frames(self, start: int, stop: int, chunk_frames: int) -> list[int]:
        """Return all that the writer got of whole chunks, those of frames ``start:stop``.

        First those of chunks, decoded; then those of frames' pieces or of chunks as they lie.
        """
        first, beyond = start // chunk_frames, -(-stop // chunk_frames)
        others = self._stored
        rows = others.rows(first, beyond) if others is not None else np.empty(0, np.uint32)
        if self._pieces is not None:
            rows = self._pieces.rows(start, stop)
        return [*self._decoded.rows(first, beyond).ravel().tolist(), *rows.ravel().tolist()]
