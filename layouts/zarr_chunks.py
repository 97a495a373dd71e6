"""Reading per-atom arrays of our own trees: only the chunks, frames and atoms that are wanted.

Chunks that lie as they are go from the file straight to where they are wanted, many with one call.
Chunks that are read whole are checked against their crc32c. Of uncompressed chunks at the ends of a
run of frames, and of those much larger than the wanted atoms, only what is wanted is read,
unchecked.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mdio.core import kernels
from mdio.core.errors import CorruptLayoutError
from mdio.layouts.quantised import decode_chunk
from mdio.layouts.zarr_metadata import ArrayMetadata
from mdio.layouts.zarr_parts import Part, parts_of
from mdio.layouts.zarr_shard import CRC_NBYTES, Shard, ShardFiles

__all__ = ["ChunkedArray"]

FloatArray = NDArray[np.float32]
AtomIndices = NDArray[np.int64]
Bytes = NDArray[np.uint8]

MAX_BUFFERS = 512
"""Pieces of memory that one call fills; the system allows 1024."""
PIECE_NBYTES = 4 << 20
"""Chunks larger than this are read in pieces, and the checksum of each is taken while it is still
in a processor's cache; file systems should not be asked for less at a time."""
NARROW_SHARE = 4
"""Only the bytes of the wanted atoms are read if they lie within this part of a frame ..."""
NARROW_FRAME_NBYTES = 64 << 10
"""... and frames are at least this large: below, reading all costs less than the calls it saves."""


class ChunkedArray:
    """A per-atom array, read from shards.

    Parameters
    ----------
    folder
        Of the array.
    metadata
        What its ``zarr.json`` says; shape (frames, atoms, 3), float32.
    """

    def __init__(self, folder: Path, metadata: ArrayMetadata) -> None:
        self.folder = folder
        self.metadata = metadata
        self.n_frames, self.n_atoms, _ = metadata.shape
        self.chunk_frames, self.chunk_atoms, _ = metadata.chunk_shape
        self.frames_per_shard, self.n_atom_chunks, _ = metadata.chunks_per_file
        self.plain = metadata.compressor is None and metadata.quantised is None
        # Frames of all atoms then lie one after the other, as they do in memory.
        self._in_rows = self.plain and self.chunk_atoms == self.n_atoms
        self._chunk_nbytes = metadata.chunk_nbytes
        self._files = ShardFiles(folder, metadata)
        self._row: int | None = None
        self._decoded: dict[int, FloatArray] = {}

    def close(self) -> None:
        """Close files and forget what was decoded."""
        self._files.close()
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

    def check(self, number: int, column: int) -> int:
        """Read one whole chunk and return the crc32c of its decoded bytes.

        Parameters
        ----------
        number, column
            Of the chunk along the frames and along the atoms.
        """
        return kernels.crc32c(self._decode(number, column))

    def _locate(self, number: int, column: int) -> tuple[Shard, int, int]:
        """Return the shard of a chunk, and offset and size of the chunk in it."""
        file_number, row = divmod(number, self.frames_per_shard)
        try:
            shard = self._files[file_number]
            offset, nbytes = shard.span(row * self.n_atom_chunks + column)
        except CorruptLayoutError as error:
            raise self._corrupt(number, str(error)) from error
        if self.plain and nbytes != self._chunk_nbytes:
            raise self._corrupt(
                number, f"{shard.path}: a chunk of {nbytes} bytes, not {self._chunk_nbytes}"
            )
        return shard, offset, nbytes

    def _corrupt(self, number: int, problem: str) -> CorruptLayoutError:
        begin = number * self.chunk_frames
        end = min(begin + self.chunk_frames, self.n_frames)
        return CorruptLayoutError(f"{problem} (frames {begin} to {end - 1})")

    def _verify(self, number: int, shard: Shard, crc: int, stored: Bytes) -> None:
        if crc != int.from_bytes(stored.tobytes(), "little"):
            raise self._corrupt(
                number,
                f"{shard.path}: the checksum of a chunk is wrong; the file is damaged, convert the "
                "source anew",
            )

    def _read_within(self, start: int, stop: int, out: FloatArray) -> bool:
        """Read frames that are only a part of one chunk, and return whether they are that."""
        number, first = divmod(start, self.chunk_frames)
        begin = start - first
        end = min(begin + self.chunk_frames, self.n_frames)
        if stop > end or stop - start == end - begin:
            return False
        shard, offset, _ = self._locate(number, 0)
        flat = out.reshape(-1).view(np.uint8)
        shard.read_into([flat], offset + 12 * first * self.chunk_atoms)
        return True

    def _read_runs(self, parts: list[Part], out: FloatArray) -> None:
        """Read whole chunks straight into `out`, as many of a shard as possible with one call."""
        at = 0
        while at < len(parts):
            shard, begin, nbytes = self._locate(parts[at].number, 0)
            if nbytes > PIECE_NBYTES:
                self._read_large(parts[at], shard, begin, nbytes, out)
                at += 1
                continue
            offset = begin
            buffers: list[Bytes] = []
            chunks: list[tuple[int, list[Bytes]]] = []
            while at < len(parts) and len(buffers) < MAX_BUFFERS:
                part = parts[at]
                other, place, _ = self._locate(part.number, 0)
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
            for number, (data, padding, stored) in chunks:
                crc = kernels.crc32c(padding, kernels.crc32c(data))
                self._verify(number, shard, crc, stored)

    def _read_large(
        self, part: Part, shard: Shard, offset: int, nbytes: int, out: FloatArray
    ) -> None:
        """Read a whole chunk straight into `out`, piece by piece."""
        data = out[part.rows].reshape(-1).view(np.uint8)
        behind = np.empty(nbytes - data.nbytes + CRC_NBYTES, np.uint8)
        crc = 0
        for begin in range(0, data.nbytes, PIECE_NBYTES):
            piece = data[begin : begin + PIECE_NBYTES]
            last = begin + PIECE_NBYTES >= data.nbytes
            shard.read_into([piece, behind] if last else [piece], offset + begin)
            crc = kernels.crc32c(piece, crc)
        self._verify(
            part.number, shard, kernels.crc32c(behind[:-CRC_NBYTES], crc), behind[-CRC_NBYTES:]
        )

    def _read_chunk(
        self, part: Part, column: int, atoms: AtomIndices | None, out: FloatArray
    ) -> None:
        """Fill `out` with the wanted frames and atoms (within the chunk) of one chunk."""
        if self.plain:
            low, high = _range_of(atoms, out.shape[1])
            narrow = (
                12 * self.chunk_atoms >= NARROW_FRAME_NBYTES
                and (high - low) * NARROW_SHARE <= self.chunk_atoms
            )
            if narrow:
                self._read_range(part, column, atoms, out, low, high)
                return
            if not part.whole:
                self._read_rows(part, column, atoms, out)
                return
        form = self.metadata.quantised
        if form is not None and part.whole:
            self._dequantise(part, column, atoms, out)
            return
        if part.whole:
            chunk = self._decode(part.number, column)
        else:
            if self._row != part.number:
                self._row = part.number
                self._decoded.clear()
            if column not in self._decoded:
                self._decoded[column] = self._decode(part.number, column)
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
        shard, offset, _ = self._locate(part.number, column)
        stride = 12 * self.chunk_atoms
        offset += part.first * stride
        n_rows = part.last - part.first
        if atoms is None and out.flags.c_contiguous and out.shape[1] == self.chunk_atoms:
            shard.read_into([out.reshape(-1).view(np.uint8)], offset)
            return
        rows = shard.read(n_rows * stride, offset).view("<f4").reshape(n_rows, -1, 3)
        if atoms is None:
            out[...] = rows[:, : out.shape[1]]
        else:
            kernels.gather_atoms(rows, atoms, out)

    def _read_range(
        self,
        part: Part,
        column: int,
        atoms: AtomIndices | None,
        out: FloatArray,
        low: int,
        high: int,
    ) -> None:
        """Read only atoms ``low:high`` of the wanted frames of an uncompressed chunk."""
        shard, offset, _ = self._locate(part.number, column)
        rows = np.empty((part.last - part.first, high - low, 3), np.float32)
        for row, frame in enumerate(range(part.first, part.last)):
            begin = offset + 12 * (frame * self.chunk_atoms + low)
            shard.read_into([rows[row].reshape(-1).view(np.uint8)], begin)
        if atoms is None:
            out[...] = rows
        else:
            kernels.gather_atoms(rows, atoms - low, out)

    def _encoded(self, number: int, column: int) -> tuple[Shard, Bytes]:
        """Return the bytes of a chunk as they lie on disk, checked."""
        shard, offset, nbytes = self._locate(number, column)
        data = shard.read(nbytes + CRC_NBYTES, offset)
        crc = kernels.crc32c(data[:nbytes])
        self._verify(number, shard, crc, data[nbytes:])
        return shard, data[:nbytes]

    def _decode(self, number: int, column: int) -> FloatArray:
        """Return a whole chunk, padding included."""
        shard, data = self._encoded(number, column)
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
            raise self._corrupt(
                number, f"{shard.path}: a chunk cannot be decoded: {error}"
            ) from error
        return chunk

    def _dequantise(
        self, part: Part, column: int, atoms: AtomIndices | None, out: FloatArray
    ) -> None:
        """Decode the wanted atoms of a quantised chunk into place, without a copy."""
        shard, data = self._encoded(part.number, column)
        shape = (self.chunk_frames, self.chunk_atoms)
        if atoms is None and out.shape[1] < self.chunk_atoms:
            atoms = np.arange(out.shape[1])
        try:
            decode_chunk(data.data, shape, out, atoms, part.first, part.last)
        except ValueError as error:
            raise self._corrupt(
                part.number, f"{shard.path}: a chunk cannot be decoded: {error}"
            ) from error


def _range_of(atoms: AtomIndices | None, n_atoms: int) -> tuple[int, int]:
    """Return the first of the atoms and the one behind their last."""
    return (0, n_atoms) if atoms is None else (int(atoms.min()), int(atoms.max()) + 1)
