"""Per-atom arrays in chunks: only what is wanted of them is read, and it is verified.

Chunks that lie as they are in memory go from the file straight to where they are wanted, several
with one call. Chunks that are read whole are compared with their crc32c. Of uncompressed chunks at
the ends of a run of frames, and of frames much larger than the wanted atoms, only the pieces that
hold what is wanted are read, and each is compared with a checksum of its own.
"""

from __future__ import annotations

import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from threading import local
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mdio.core.blocks import Spans
from mdio.core.errors import CorruptLayoutError
from mdio.core.files.in_flight import ByteRange, Opening
from mdio.core.files.piece_sums import (
    ROW_PIECE_NBYTES,
    Sums,
    first_difference,
    pieces_of_row,
    row_sums,
    widen_to_pieces,
)
from mdio.core.files.reading import Buffer, OpenFile
from mdio.core.frames import AtomIndices
from mdio.core.kernels import crc32c, gather_atoms, unshuffle

FloatArray = NDArray[np.float32]
Bytes = NDArray[np.uint8]
Run = list[tuple[int, Bytes, Bytes]]
"""Whole chunks that follow one another: number, frames, what lies behind them."""


NARROW_SHARE = 4
"""Only the bytes of the wanted atoms are read if they are at most this part of a frame ..."""
NARROW_FRAME_NBYTES = 64 << 10
"""... and frames are at least this large: below, reading all costs less than the calls it saves."""
FEW_SHARE = 16
"""So few frames of a chunk, a part of it, or one, are decoded alone when it is first looked at: if
more are read next, decoding all of them then has cost little more."""


class Rows(NamedTuple):
    """The wanted frames of one row of chunks."""

    i: int
    """Number of the row, along the frames."""
    first: int
    last: int
    """Frames within the chunk."""
    target: slice
    """Where they go."""
    whole: bool
    """Whether they are all that the row has."""


class Columns(NamedTuple):
    """The wanted atoms of one column of chunks."""

    j: int
    atoms: AtomIndices | None
    """Within the chunk; None = all that it has."""
    n_atoms: int
    """How many the column has."""
    target: slice | AtomIndices
    """Where they go."""
    span: tuple[int, int] | None
    """The bytes of each frame that are read; None for all."""


def cut(
    rows: NDArray[np.float32], atoms: AtomIndices | None, n_atoms: int, begin: int
) -> tuple[NDArray[np.float32], AtomIndices | None]:
    """Return the numbers of the wanted atoms in rows from number `begin` on, and these atoms."""
    low, high = (0, n_atoms) if atoms is None else (int(atoms.min()), int(atoms.max()) + 1)
    source = rows[:, 3 * low - begin : 3 * high - begin].reshape(len(rows), -1, 3)
    return source, None if atoms is None else atoms - low


class _Scratch(local):
    """Memory of one thread for bytes that are decoded at once: new pages are dear.

    Not one for each array: of an ensemble, hundreds of them are open.
    """

    def __init__(self) -> None:
        self._room = np.empty(0, np.uint8)

    def take(self, nbytes: int) -> Bytes:
        """Return so many bytes, which are the caller's until the next call; many are not kept."""
        if nbytes > SCRATCH_NBYTES:
            return np.empty(nbytes, np.uint8)
        if self._room.nbytes < nbytes:
            self._room = np.empty(nbytes, np.uint8)
        return self._room[:nbytes]


_scratch = _Scratch()
SCRATCH_NBYTES = 64 << 20
RUN_NBYTES = 4 << 20
"""A checksum is taken as often, while what was read is still in a processor's cache; file systems
should not be asked for less at a time."""


class ChunkedArray(ABC):
    """An array of coordinates, (F, A, 3) float32, that is read.

    `what`: what messages call it. `shape`, `chunk`: frames and atoms, of all and of a chunk.
    `plain`: whether chunks lie as they are in memory. `verify`: whether what is read is compared
    with checksums. `in_pieces`: whether what is read of a frame's row of a chunk is widened to
    whole pieces then (`mdio.core.files.piece_sums`).
    """

    behind_nbytes = 0
    """Bytes that follow each chunk and are read with it."""
    decodes_parts = False
    """Whether `_decode` saves time where few atoms are wanted."""
    decodes_frames = False
    """Whether it does where few frames are."""
    sums_of_decoded = False
    """Whether the checksum of a compressed chunk is that of what it holds."""

    def __init__(
        self,
        what: str,
        shape: tuple[int, ...],
        chunk: tuple[int, ...],
        *,
        plain: bool,
        verify: bool,
        in_pieces: bool,
    ) -> None:
        self.what = what
        self.n_frames, self.n_atoms = shape[:2]
        self.chunk_frames, self.chunk_atoms = chunk[:2]
        self.grid = (-(-self.n_frames // self.chunk_frames), -(-self.n_atoms // self.chunk_atoms))
        self.row_nbytes = 12 * self.chunk_atoms
        self.plain, self.in_pieces = plain, plain and verify and in_pieces
        self.verifies = verify
        self._all = [
            self._column(j, None, slice(j * self.chunk_atoms, (j + 1) * self.chunk_atoms))
            for j in range(self.grid[1])
        ]
        # Frames of all atoms then lie one after the other, as they do in memory.
        self._in_rows = plain and self.chunk_atoms == self.n_atoms
        self._n_pieces = pieces_of_row(self.row_nbytes)
        self._last: tuple[AtomIndices, list[Columns]] | None = None
        self._row = self._passed = -1
        """The row of chunks that is decoded, and that of which a few frames were read last."""
        self._decoded: dict[int, FloatArray] = {}

    def describe_chunk(self, i: int, j: int) -> str:
        """Return the name of a chunk in messages."""
        first, atom = i * self.chunk_frames, j * self.chunk_atoms
        name = f"{self.what}, frames {first} to {min(first + self.chunk_frames, self.n_frames) - 1}"
        if self.grid[1] > 1:
            name += f", atoms {atom} to {min(atom + self.chunk_atoms, self.n_atoms) - 1}"
        return name

    def rows(self, start: int, stop: int) -> Iterator[Rows]:
        """Yield what frames ``start:stop`` take from each row of chunks."""
        size = self.chunk_frames
        for i in range(start // size, (stop - 1) // size + 1):
            begin, end = i * size, min((i + 1) * size, self.n_frames)
            first, last = max(start, begin), min(stop, end)
            target = slice(first - start, last - start)
            yield Rows(i, first - begin, last - begin, target, last - first == end - begin)

    def columns(self, atoms: AtomIndices | None) -> list[Columns]:
        """Sort a selection by chunk; the answer for the last selection is kept."""
        if atoms is None:
            return self._all
        if self.grid[1] == 1:
            return [self._column(0, atoms, slice(None))]
        if self._last is not None and np.array_equal(self._last[0], atoms):
            return self._last[1]
        owner = atoms // self.chunk_atoms
        columns = []
        for j in np.flatnonzero(np.bincount(owner)).tolist():
            positions = np.flatnonzero(owner == j)
            target: slice | AtomIndices = positions
            if positions[-1] - positions[0] + 1 == positions.size:
                target = slice(int(positions[0]), int(positions[-1]) + 1)
            columns.append(self._column(j, atoms[positions] - j * self.chunk_atoms, target))
        self._last = (atoms.copy(), columns)
        return columns

    def _column(self, j: int, atoms: AtomIndices | None, target: slice | AtomIndices) -> Columns:
        n_atoms = min(self.chunk_atoms, self.n_atoms - j * self.chunk_atoms)
        span = None
        if self.plain and self.row_nbytes >= NARROW_FRAME_NBYTES:
            begin, end = 0, 12 * n_atoms
            if atoms is not None:
                begin, end = 12 * int(atoms.min()), 12 * int(atoms.max()) + 12
            if self.in_pieces:
                begin, end = widen_to_pieces(begin, end, self.row_nbytes)
            if (end - begin) * NARROW_SHARE <= self.row_nbytes:
                span = begin, end
        return Columns(j, atoms, n_atoms, target, span)

    @abstractmethod
    def locate(self, i: int, j: int) -> tuple[OpenFile, int, int]:
        """Return the file of a chunk, and offset and size of the chunk in it.

        Raises CorruptLayoutError: it is not there.
        """

    @abstractmethod
    def corrupt(self, i: int, j: int, file: OpenFile, problem: str) -> CorruptLayoutError:
        """Return the error for a chunk, which names file, array and frames."""

    # What follows is not asked of arrays that verify nothing, or of which all chunks are plain.

    def _compare(self, i: int, j: int, file: OpenFile, crc: int, behind: Bytes) -> None:
        """Compare the crc32c of a chunk with what it should be; raises CorruptLayoutError."""
        raise NotImplementedError

    def _pieces(self, start: int, stop: int, j: int, first: int, n_pieces: int) -> Sums:
        """Return the checksums of pieces of frames ``start:stop`` of a column, (frames, pieces)."""
        raise NotImplementedError

    def _decode(
        self, data: Bytes, out: FloatArray, atoms: AtomIndices | None, first: int, last: int
    ) -> None:
        """Turn the bytes of a chunk into its frames ``first:last``; raises ValueError.

        Some atoms or frames only are wanted only if it `decodes_parts`.
        """
        raise NotImplementedError

    def __getstate__(self) -> dict[str, Any]:
        """Leave behind what was read last."""
        return {**self.__dict__, "_row": -1, "_passed": -1, "_decoded": {}, "_last": None}

    def close(self) -> None:
        """Forget what was decoded."""
        self._row = self._passed = -1
        self._decoded.clear()

    def read(self, start: int, stop: int, atoms: AtomIndices | None, out: FloatArray) -> None:
        """Fill `out`, (stop - start, k, 3), with frames ``start:stop`` of `atoms` (None = all).

        Raises CorruptLayoutError: a chunk is missing or damaged; the message names the file and the
        frames.
        """
        if self._in_rows and atoms is None and out.flags.c_contiguous:
            i, first = divmod(start, self.chunk_frames)
            begin = start - first
            end = min(begin + self.chunk_frames, self.n_frames)
            if stop <= end and stop - start < end - begin:
                self._read_frames(i, first, out)
            else:
                self._read_in_rows(start, stop, out)
            return
        columns = self.columns(atoms)
        for rows in self.rows(start, stop):
            target = out[rows.target]
            direct = self.decodes_parts and rows.i != self._row and self._alone(rows, columns)
            for column in columns:
                self._read_chunk(rows, column, target, direct=direct)

    def _alone(self, rows: Rows, columns: Sequence[Columns]) -> bool:
        """Return whether to decode the wanted frames of some chunks alone, and keep none.

        All that they have; or a few, if others were not wanted just before: then these may never
        be. From a store a chunk comes once.
        """
        if rows.whole or not self.decodes_frames:
            return rows.whole
        before, self._passed = self._passed, rows.i
        n_frames = rows.last - rows.first
        few = n_frames == 1 or n_frames * FEW_SHARE <= self.chunk_frames
        return few and rows.i != before and not self.locate(rows.i, columns[0].j)[0].remote

    def check(self, i: int, j: int) -> FloatArray:
        """Return a whole chunk, compared with its checksum; raises CorruptLayoutError."""
        return self._load(i, j, verify=True)

    def chunk_range(self, i: int, j: int) -> list[ByteRange]:
        """Return where a chunk lies; raises CorruptLayoutError."""
        file, offset, nbytes = self.locate(i, j)
        return [ByteRange(file, offset, nbytes + self.behind_nbytes)]

    def byte_ranges(self, start: int, stop: int, atoms: AtomIndices | None) -> Iterator[ByteRange]:
        """Yield what `read` reads of chunks; raises what it raises."""
        columns = self.columns(atoms)
        for i, first, last, _, whole in self.rows(start, stop):
            for column in columns:
                file, offset, nbytes = self.locate(i, column.j)
                if column.span is not None:
                    begin, end = column.span
                    for k in range(first, last):
                        yield ByteRange(file, offset + k * self.row_nbytes + begin, end - begin)
                elif self.plain and not whole:
                    nbytes = (last - first) * self.row_nbytes
                    yield ByteRange(file, offset + first * self.row_nbytes, nbytes)
                else:
                    yield ByteRange(file, offset, nbytes + self.behind_nbytes)

    def openings(
        self,
        runs: Spans,  # noqa: ARG002
        atoms: AtomIndices | None,  # noqa: ARG002
        share: int,  # noqa: ARG002
    ) -> Iterator[Opening]:
        """Yield the objects that reading runs opens first, within the memory of one of `share`."""
        yield from ()

    def chunk_openings(self, i: int) -> Iterator[Opening]:  # noqa: ARG002
        """Yield the objects that are opened to read chunks of row `i`."""
        yield from ()

    def _fill(self, i: int, j: int, file: OpenFile, offset: int, *buffers: Buffer) -> None:
        try:
            file.fill(offset, *buffers)
        except CorruptLayoutError as error:
            problem = str(error).removeprefix(f"{file.path}: ")
            raise self.corrupt(i, j, file, problem) from error

    def _check_rows(
        self, i: int, j: int, first: int, file: OpenFile, rows: NDArray[np.generic], piece: int = 0
    ) -> None:
        """Compare rows of a chunk, from its frame `first` and from a piece of each on."""
        sums = row_sums(rows)
        start, n_rows = i * self.chunk_frames + first, len(rows)
        n_pieces = len(sums) // n_rows
        expected = self._pieces(start, start + n_rows, j, piece, n_pieces)
        wrong = first_difference(sums, expected)
        if wrong is not None:
            problem = (
                f"the checksum of frame {start + wrong // n_pieces} is {sums[wrong]:08x}, expected"
                f" {expected.flat[wrong]:08x}; the file is damaged or not what was written there, "
                "convert the source again"
            )
            raise self.corrupt(i, j, file, problem)

    def _read_frames(self, i: int, first: int, out: FloatArray) -> None:
        """Read frames of a chunk, from its frame `first` on, as they lie."""
        file, offset, _ = self.locate(i, 0)
        offset += first * self.row_nbytes
        if self.in_pieces:
            start = i * self.chunk_frames + first
            sums = self._pieces(start, start + len(out), 0, 0, self._n_pieces)
            if file.fill_rows(offset, out, sums, ROW_PIECE_NBYTES):
                return
        self._fill(i, 0, file, offset, out)
        if self.in_pieces:
            self._check_rows(i, 0, first, file, out)

    def _read_in_rows(self, start: int, stop: int, out: FloatArray) -> None:
        """Read straight into `out`, neighbouring chunks with one call."""
        run: Run = []
        file: OpenFile | None = None
        begin = end = 0
        for i, first, _, target, whole in self.rows(start, stop):
            if not whole:
                if file is not None:  # in order, as what is asked for ahead
                    self._read_run(file, begin, run)
                    run, file = [], None
                self._read_frames(i, first, out[target])
                continue
            other, offset, nbytes = self.locate(i, 0)
            data = out[target].reshape(-1).view(np.uint8)
            behind = np.empty(nbytes - data.nbytes + self.behind_nbytes, np.uint8)
            if file is not None and (
                other is not file or offset != end or offset + nbytes > begin + RUN_NBYTES
            ):
                self._read_run(file, begin, run)
                run = []
            if not run:
                file, begin = other, offset
            run.append((i, data, behind))
            end = offset + nbytes + self.behind_nbytes
        if file is not None:
            self._read_run(file, begin, run)

    def _read_run(self, file: OpenFile, offset: int, run: Run) -> None:
        i, data, last = run[0]
        crc = 0
        while self.verifies and data.nbytes > RUN_NBYTES:  # it is alone in its run
            self._fill(i, 0, file, offset, data[:RUN_NBYTES])
            crc = crc32c(data[:RUN_NBYTES], crc)
            data, offset = data[RUN_NBYTES:], offset + RUN_NBYTES
        run[0] = i, data, last
        self._fill(i, 0, file, offset, *(part for _, *parts in run for part in parts if part.size))
        for i, data, behind in run if self.verifies else ():
            crc = crc32c(data, crc)
            n_zeros = behind.nbytes - self.behind_nbytes  # after the last frame
            if n_zeros:
                crc = crc32c(behind[:n_zeros], crc)
            self._compare(i, 0, file, crc, behind[n_zeros:])
            crc = 0

    def _read_chunk(self, rows: Rows, column: Columns, out: FloatArray, *, direct: bool) -> None:
        """Fill the column's part of `out` with the wanted frames and atoms of one chunk.

        `direct`: whether these alone are decoded.
        """
        j, atoms, n_atoms, target, span = column
        if span is not None:
            source = self._read_rows(rows, j, *span)
            source, atoms = cut(source, atoms, n_atoms, span[0] // 4)
        elif self.plain and not rows.whole:
            source = self._read_rows(rows, j, 0, self.row_nbytes)
            source = source.reshape(len(source), -1, 3)
        elif direct:
            if atoms is None and n_atoms < self.chunk_atoms:
                atoms = np.arange(n_atoms)
            if isinstance(target, slice):
                self._decode_into(rows.i, j, out[:, target], atoms, rows.first, rows.last)
                return
            source = np.empty((len(out), len(target), 3), np.float32)
            self._decode_into(rows.i, j, source, atoms, rows.first, rows.last)
            atoms, n_atoms = None, len(target)
        else:
            source = self._chunk(rows.i, j, keep=not rows.whole)[rows.first : rows.last]
        if atoms is None:
            out[:, target] = source[:, :n_atoms]
        elif isinstance(target, slice):
            gather_atoms(source, atoms, out[:, target])
        else:
            out[:, target] = source[:, atoms]

    def _read_rows(self, rows: Rows, j: int, begin: int, end: int) -> FloatArray:
        """Return bytes ``begin:end`` of the wanted frames of an uncompressed chunk, as numbers."""
        i, first, last, *_ = rows
        file, offset, _ = self.locate(i, j)
        row_bytes = np.empty((last - first, end - begin), np.uint8)
        first_byte = offset + first * self.row_nbytes + begin
        if end - begin == self.row_nbytes:
            self._fill(i, j, file, first_byte, row_bytes)
        else:
            for k, row in enumerate(row_bytes):
                self._fill(i, j, file, first_byte + k * self.row_nbytes, row)
        if self.in_pieces:
            self._check_rows(i, j, first, file, row_bytes, begin // ROW_PIECE_NBYTES)
        return row_bytes.view("<f4")

    def _encoded(self, i: int, j: int, *, verify: bool) -> tuple[OpenFile, Bytes]:
        """Return the bytes of a chunk as they lie on disk, until this thread asks for others."""
        file, offset, nbytes = self.locate(i, j)
        encoded = _scratch.take(nbytes + self.behind_nbytes)
        self._fill(i, j, file, offset, encoded)
        if verify and (self.plain or not self.sums_of_decoded):
            self._compare(i, j, file, crc32c(encoded[:nbytes]), encoded[nbytes:])
        return file, encoded[:nbytes]

    def _decode_into(
        self,
        i: int,
        j: int,
        out: FloatArray,
        atoms: AtomIndices | None,
        first: int,
        last: int,
        *,
        verify: bool | None = None,
    ) -> None:
        verify = self.verifies if verify is None else verify
        file, data = self._encoded(i, j, verify=verify)
        try:
            self._decode(data, out, atoms, first, last)
        except ValueError as error:
            raise self.corrupt(i, j, file, f"a chunk cannot be decoded: {error}") from error
        if verify and self.sums_of_decoded:
            self._compare(i, j, file, crc32c(out), data[:0])

    def _load(self, i: int, j: int, *, verify: bool) -> FloatArray:
        """Return a whole chunk, padding included; one as it lies until the next is asked for."""
        if self.plain:
            data = self._encoded(i, j, verify=verify)[1]
            return data.view("<f4").reshape(-1, self.chunk_atoms, 3)
        chunk = np.empty((self.chunk_frames, self.chunk_atoms, 3), np.float32)
        self._decode_into(i, j, chunk, None, 0, self.chunk_frames, verify=verify)
        return chunk

    def _chunk(self, i: int, j: int, *, keep: bool) -> FloatArray:
        """Return a whole chunk; those of one row are kept, if that is wanted."""
        if self._row == i and j in self._decoded:
            return self._decoded[j]
        chunk = self._load(i, j, verify=self.verifies)
        if keep:
            if self._row != i:
                self._row, self._decoded = i, {}
            self._decoded[j] = chunk
        return chunk


DEFLATE_MAX_RATIO = 1100
"""zlib makes at most about 1,030 bytes of one; a chunk that claims more is damaged."""
DAMAGED = "the file is damaged: convert the source again"


class ChunksInFile(ChunkedArray):
    """Chunks of one file.

    `file`: which has them. `offset`, `nbytes`, (frame chunks, atom chunks): place and stored bytes
    of each. The rest is that of `ChunkedArray`.
    """

    def __init__(
        self,
        what: str,
        shape: tuple[int, ...],
        chunk: tuple[int, int],
        file: OpenFile,
        offset: NDArray[np.int64],
        nbytes: NDArray[np.int64],
        **facts: bool,
    ) -> None:
        super().__init__(what, shape, chunk, **facts)
        self.file, self.offset, self.nbytes = file, offset, nbytes

    def locate(self, i: int, j: int) -> tuple[OpenFile, int, int]:
        """Return the file, and offset and size of a chunk."""
        return self.file, int(self.offset[i, j]), int(self.nbytes[i, j])

    def corrupt(self, i: int, j: int, file: OpenFile, problem: str) -> CorruptLayoutError:  # noqa: ARG002
        """Return the error for a chunk."""
        return CorruptLayoutError(f"{self.describe_chunk(i, j)}: {problem}")


def inflate(stored: NDArray[np.uint8], out: NDArray[Any]) -> None:
    """Fill `out` with what is in a chunk that went through HDF5's filters shuffle and deflate.

    Raises ValueError: it cannot be decompressed, or to another number of bytes.
    """
    if out.nbytes > DEFLATE_MAX_RATIO * stored.nbytes:
        raise ValueError(f"{stored.nbytes} bytes cannot hold {out.nbytes}; {DAMAGED}")
    stream = zlib.decompressobj()
    try:  # one byte more: zlib compares its checksum at the end alone
        inflated = stream.decompress(stored.data, out.nbytes + 1)
    except zlib.error as error:
        raise ValueError(f"{error}; {DAMAGED}") from error
    if not stream.eof and len(inflated) == out.nbytes:
        raise ValueError(f"its end is missing; {DAMAGED}")
    if len(inflated) != out.nbytes:
        raise ValueError(f"it has {len(inflated)} bytes, expected {out.nbytes}; {DAMAGED}")
    unshuffle(inflated, out.itemsize, out.reshape(-1).view(np.uint8).data)
