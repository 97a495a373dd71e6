"""Reading per-atom arrays of our own trees: only the chunks, frames and atoms that are wanted.

Chunks that lie as they are go from the file straight to where they are wanted, many with one call.
Chunks that are read whole are checked against their crc32c. Of uncompressed chunks at the ends of a
run of frames, and of those much larger than the wanted atoms, only the pieces that hold what is
wanted are read, and each is checked against its own (`mdio.layouts.zarr.checksums`).
"""

from __future__ import annotations

from itertools import product
from typing import cast

import numpy as np
from numpy.typing import NDArray

from mdio.core import kernels
from mdio.core.files.piece_sums import pieces_of_row
from mdio.layouts.codecs.quantised import decode_chunk
from mdio.layouts.output import EncodedChunk
from mdio.layouts.zarr.checksums import Checksums
from mdio.layouts.zarr.folder import Folder
from mdio.layouts.zarr.metadata import ArrayMetadata
from mdio.layouts.zarr.parts import Part, parts_of
from mdio.layouts.zarr.shard import CRC_NBYTES, Shard
from mdio.layouts.zarr.stored import StoredChunks, range_of

__all__ = ["ChunkedArray"]

FloatArray = NDArray[np.float32]
AtomIndices = NDArray[np.int64]
Bytes = NDArray[np.uint8]

MAX_BUFFERS = 512
"""Pieces of memory that one call fills; the system allows 1024."""
RUN_NBYTES = 4 << 20
"""Chunks larger than this are read in runs, and the checksum of each is taken while it is still
in a processor's cache; file systems should not be asked for less at a time."""


class ChunkedArray(StoredChunks):
    """A per-atom array, read from shards; see `StoredChunks` for its parameters."""

    def __init__(
        self,
        root: Folder,
        name: str,
        metadata: ArrayMetadata,
        checksums: Checksums,
        *,
        verify: bool,
    ) -> None:
        super().__init__(root, name, metadata, checksums, verify=verify)
        # Frames of all atoms then lie one after the other, as they do in memory.
        self._in_rows = self.plain and self.chunk_atoms == self.n_atoms
        self._row: int | None = None
        self._decoded: dict[int, FloatArray] = {}

    def close(self) -> None:
        """Close files and forget what was decoded."""
        super().close()
        self._row = None
        self._decoded.clear()

    def read(self, start: int, stop: int, atoms: AtomIndices | None, out: FloatArray) -> None:
        """Fill `out` with frames ``start:stop`` of `atoms` (None = all).

        Raises
        ------
        CorruptLayoutError
            A shard or chunk is missing or damaged; the message names the file and the frames.
        """
        in_rows = self._in_rows and atoms is None and out.flags.c_contiguous
        if in_rows and self._read_within(start, stop, out):
            return
        parts = parts_of(start, stop, self.chunk_frames, self.n_frames)
        if in_rows:
            self._read_runs([part for part in parts if part.whole], out)
            parts = [part for part in parts if not part.whole]
        for part in parts:
            target = out[part.rows]
            for column in range(self.n_atom_chunks):
                begin = column * self.chunk_atoms
                end = min(begin + self.chunk_atoms, self.n_atoms)
                if atoms is None:
                    self._read_chunk(part, column, None, target[:, begin:end])
                elif self.n_atom_chunks == 1:
                    self._read_chunk(part, column, atoms, target)
                else:
                    places = np.flatnonzero((atoms >= begin) & (atoms < end))
                    if places.size:
                        picked = np.empty((target.shape[0], places.size, 3), np.float32)
                        self._read_chunk(part, column, atoms[places] - begin, picked)
                        target[:, places] = picked

    def check(self, number: int, column: int) -> None:
        """Read one whole chunk and compare it with all its checksums; raises CorruptLayoutError.

        Parameters
        ----------
        number, column
            Of the chunk along the frames and along the atoms.
        """
        chunk = self._decode(number, column, verify=True)
        shard, *_ = self.locate(number, column)
        if kernels.crc32c(chunk) != self.checksums.decoded(number, column):
            raise self.corrupt(number, f"{shard.path}: not what was written there")
        if self.plain and self.checksums.has_pieces:
            n_rows = min(self.chunk_frames, self.n_frames - number * self.chunk_frames)
            rows = chunk.reshape(self.chunk_frames, -1)[:n_rows].view(np.uint8)
            self.verify_rows(number, 0, column, shard, rows)

    def stored(self, start: int, stop: int) -> EncodedChunk:
        """Return the shard of frames ``start:stop``, in which all has been checked."""
        rows = range(start // self.chunk_frames, -(-stop // self.chunk_frames))
        decoded: list[int] = []
        others: list[int | None] = []
        for number, column in product(rows, range(self.n_atom_chunks)):
            self.check(number, column)
            decoded.append(self.checksums.decoded(number, column))
            others.append(self.checksums.stored(number, column))
        shard = self.locate(rows.start, 0)[0]
        if self.plain:
            n_pieces = self.n_atom_chunks * pieces_of_row(self.row_nbytes)
            others = [*self.checksums.pieces(start, stop, 0, 0, n_pieces).reshape(-1).tolist()]
        data = np.memmap(shard.path, np.uint8, "r")
        name = self.metadata.file_name(rows.start // self.frames_per_shard)
        crcs = cast(list[int], [*decoded, *others])
        return EncodedChunk(f"{self._name}/{name}", data, crcs, shard.path)

    def _read_within(self, start: int, stop: int, out: FloatArray) -> bool:
        """Read frames that are only a part of one chunk, and return whether they are that."""
        number, first = divmod(start, self.chunk_frames)
        begin = start - first
        end = min(begin + self.chunk_frames, self.n_frames)
        if stop > end or stop - start == end - begin:
            return False
        shard, offset, _ = self.locate(number, 0)
        flat = out.reshape(-1).view(np.uint8)
        shard.read_into([flat], offset + first * self.row_nbytes)
        if self.in_pieces:
            self.verify_rows(number, first, 0, shard, flat.reshape(stop - start, -1))
        return True

    def _read_runs(self, parts: list[Part], out: FloatArray) -> None:
        """Read whole chunks straight into `out`, as many of a shard as possible with one call."""
        at = 0
        while at < len(parts):
            shard, begin, nbytes = self.locate(parts[at].number, 0)
            if nbytes > RUN_NBYTES:
                self._read_large(parts[at], shard, begin, nbytes, out)
                at += 1
                continue
            offset = begin
            buffers: list[Bytes] = []
            chunks: list[tuple[int, list[Bytes]]] = []
            while at < len(parts) and len(buffers) < MAX_BUFFERS:
                part = parts[at]
                other, place, _ = self.locate(part.number, 0)
                if other is not shard or place != offset:
                    break
                data = out[part.rows].reshape(-1).view(np.uint8)
                padding = np.empty(nbytes - data.nbytes, np.uint8)
                pieces = [data, padding, np.empty(CRC_NBYTES, np.uint8)]
                chunks.append((part.number, pieces))
                buffers += [piece for piece in pieces if piece.size]
                offset += nbytes + CRC_NBYTES
                at += 1
            shard.read_into(buffers, begin)
            for number, (data, padding, stored) in chunks if self.verifies else ():
                crc = kernels.crc32c(padding, kernels.crc32c(data))
                self.verify_chunk(number, 0, shard, crc, stored)

    def _read_large(
        self, part: Part, shard: Shard, offset: int, nbytes: int, out: FloatArray
    ) -> None:
        """Read a whole chunk straight into `out`, piece by piece."""
        data = out[part.rows].reshape(-1).view(np.uint8)
        behind = np.empty(nbytes - data.nbytes + CRC_NBYTES, np.uint8)
        crc = 0
        for begin in range(0, data.nbytes, RUN_NBYTES):
            run = data[begin : begin + RUN_NBYTES]
            last = begin + RUN_NBYTES >= data.nbytes
            shard.read_into([run, behind] if last else [run], offset + begin)
            if self.verifies:
                crc = kernels.crc32c(run, crc)
        if self.verifies:
            crc = kernels.crc32c(behind[:-CRC_NBYTES], crc)
            self.verify_chunk(part.number, 0, shard, crc, behind[-CRC_NBYTES:])

    def _read_chunk(
        self, part: Part, column: int, atoms: AtomIndices | None, out: FloatArray
    ) -> None:
        """Fill `out` with the wanted frames and atoms (within the chunk) of one chunk."""
        if self.plain:
            narrow = self.narrow(atoms, out.shape[1])
            if narrow is not None:
                low, high = range_of(atoms, out.shape[1])
                begin, end = narrow
                wanted = slice(3 * low - begin // 4, 3 * high - begin // 4)
                rows = self.read_range(part, column, begin, end)[:, wanted]
                rows = rows.reshape(len(rows), -1, 3)
                if atoms is None:
                    out[...] = rows
                else:
                    kernels.gather_atoms(rows, atoms - low, out)
                return
            if not part.whole:
                self._read_rows(part, column, atoms, out)
                return
        form = self.metadata.quantised
        if form is not None and part.whole:
            self._dequantise(part, column, atoms, out)
            return
        if part.whole:
            chunk = self._decode(part.number, column, verify=self.verifies)
        else:
            if self._row != part.number:
                self._row = part.number
                self._decoded.clear()
            if column not in self._decoded:
                chunk = self._decode(part.number, column, verify=self.verifies)
                self._decoded[column] = chunk
            chunk = self._decoded[column]
        frames = chunk[part.first : part.last]
        if atoms is None:
            out[...] = frames[:, : out.shape[1]]
        else:
            kernels.gather_atoms(frames, atoms, out)

    def _read_rows(
        self, part: Part, column: int, atoms: AtomIndices | None, out: FloatArray
    ) -> None:
        """Read only the wanted frames of an uncompressed chunk."""
        shard, offset, _ = self.locate(part.number, column)
        offset += part.first * self.row_nbytes
        n_rows = part.last - part.first
        straight = atoms is None and out.flags.c_contiguous and out.shape[1] == self.chunk_atoms
        if straight:
            data = out.reshape(-1).view(np.uint8)
            shard.read_into([data], offset)
        else:
            data = shard.read(n_rows * self.row_nbytes, offset)
        if self.in_pieces:
            self.verify_rows(part.number, part.first, column, shard, data.reshape(n_rows, -1))
        if straight:
            return
        rows = data.view("<f4").reshape(n_rows, -1, 3)
        if atoms is None:
            out[...] = rows[:, : out.shape[1]]
        else:
            kernels.gather_atoms(rows, atoms, out)

    def _decode(self, number: int, column: int, *, verify: bool) -> FloatArray:
        """Return a whole chunk, padding included."""
        shard, data = self.encoded(number, column, verify)
        shape = self.metadata.chunk_shape
        if self.plain:
            return data.view("<f4").reshape(shape)
        chunk = np.empty(shape, np.float32)
        try:
            if self.metadata.quantised is not None:
                decode_chunk(data.data, (shape[0], shape[1]), chunk)
            elif self.metadata.compressor is not None:
                flat = chunk.reshape(-1).view(np.uint8)
                self.metadata.compressor.decode(data.data, flat)
        except ValueError as error:
            raise self.corrupt(
                number, f"{shard.path}: a chunk cannot be decoded: {error}"
            ) from error
        return chunk

    def _dequantise(
        self, part: Part, column: int, atoms: AtomIndices | None, out: FloatArray
    ) -> None:
        """Decode the wanted atoms of a quantised chunk into place, without a copy."""
        shard, data = self.encoded(part.number, column, self.verifies)
        shape = (self.chunk_frames, self.chunk_atoms)
        if atoms is None and out.shape[1] < self.chunk_atoms:
            atoms = np.arange(out.shape[1])
        try:
            decode_chunk(data.data, shape, out, atoms, part.first, part.last)
        except ValueError as error:
            raise self.corrupt(
                part.number, f"{shard.path}: a chunk cannot be decoded: {error}"
            ) from error
