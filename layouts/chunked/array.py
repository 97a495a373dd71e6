"""Per-atom arrays in chunks: only the requested frames and atoms are read, and verified.

Uncompressed chunks of complete frames are read from the file straight into the caller's array,
several with one call. A complete chunk is compared with its crc32c. Of uncompressed chunks at the
ends of a run of frames, and of frames much larger than the requested atoms, only the spans with
requested numbers are read, and each is compared with its own checksum.
"""

from __future__ import annotations

import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mdio.core.blocks import FrameRuns
from mdio.core.errors import CorruptLayoutError
from mdio.core.files.in_flight import ByteRange, Opening
from mdio.core.files.reading import Buffer, OpenFile
from mdio.core.files.span_checksums import (
    ROW_SPAN_NBYTES,
    Sums,
    first_difference,
    row_checksums,
    spans_of_row,
    widen_to_spans,
)
from mdio.core.frames import AtomIndices, Scratch
from mdio.core.kernels import crc32c, gather_atoms, unshuffle

FloatArray = NDArray[np.float32]
Bytes = NDArray[np.uint8]
CoalescedChunks = list[tuple[int, Bytes, Bytes]]
"""Complete chunks that one call reads: row of each, memory for its frames, and for the bytes after
these."""


PARTIAL_READ_DIVISOR = 4
"""Only the bytes of the requested atoms are read if they are at most 1/PARTIAL_READ_DIVISOR of a
frame, and frames have at least `MIN_PARTIAL_FRAME_NBYTES`."""
MIN_PARTIAL_FRAME_NBYTES = 64 << 10
"""Of smaller frames all bytes are read, which costs less than the additional calls."""
FEW_FRAMES_DIVISOR = 16
"""At most 1/FEW_FRAMES_DIVISOR of a chunk's frames, or one, are decoded alone when a chunk is first
accessed: if others are read next, decoding all of them then has cost little more."""


class RowFrames(NamedTuple):
    """The requested frames in one row of chunks."""

    row: int
    """Number of the row of chunks, along the frames."""
    first: int
    end: int
    """Run of frames ``first:end``, numbered within the chunk."""
    target: slice
    """Their rows in the caller's array."""
    is_complete: bool
    """Whether they are all frames of the row."""


class ColumnAtoms(NamedTuple):
    """The requested atoms in one column of chunks."""

    column: int
    """Number of the column of chunks, along the atoms."""
    atoms: AtomIndices | None
    """Indices within the chunk; None: all of its atoms."""
    n_atoms: int
    target: slice | AtomIndices
    """Their columns in the caller's array."""
    byte_bounds: tuple[int, int] | None
    """The bytes of each frame that are read; None for all."""


def select_atoms(
    rows: NDArray[np.float32], atoms: AtomIndices | None, n_atoms: int, begin: int
) -> tuple[NDArray[np.float32], AtomIndices | None]:
    """Return the part of `rows` that spans the requested atoms, and their indices in this part.

    `begin`: index of the rows' first number in a frame of `n_atoms`.
    """
    low, high = (0, n_atoms) if atoms is None else (int(atoms.min()), int(atoms.max()) + 1)
    source = rows[:, 3 * low - begin : 3 * high - begin].reshape(len(rows), -1, 3)
    return source, None if atoms is None else atoms - low


_scratch = Scratch()
"""All arrays share it, since hundreds of them are open for an ensemble."""
CHECKSUM_RUN_NBYTES = 4 << 20
"""Bytes that are read before their checksum is computed: enough for file systems to be fast."""
DISK_CHECKSUM_RUN_NBYTES = 512 << 10
"""The same on a disk of this machine: few enough to be still in the cache of a core."""


class ChunkedArray(ABC):
    """An array of coordinates, (F, A, 3) float32, for reading.

    Chunks form a grid: their rows are along the frames, their columns along the atoms.
    `name`: for messages. `shape`, `chunk`: numbers of frames and atoms, of the array and of a
    chunk. `uncompressed`: whether chunks are stored as they are in memory. `verify`: whether
    everything that is read is compared with checksums. `has_span_checksums`: whether parts of a
    frame in a chunk are then read as complete spans (`mdio.core.files.span_checksums`).
    """

    trailer_nbytes = 0
    """Bytes that follow each chunk and are read with it."""
    decodes_atoms = False
    """Whether `_decode` is faster for few atoms."""
    decodes_frames = False
    """Whether `_decode` is faster for few frames."""
    checksums_of_decoded = False
    """Whether the checksum of a compressed chunk is that of its decoded numbers."""

    def __init__(
        self,
        name: str,
        shape: tuple[int, ...],
        chunk: tuple[int, ...],
        *,
        uncompressed: bool,
        verify: bool,
        has_span_checksums: bool,
    ) -> None:
        self.name = name
        self.n_frames, self.n_atoms = shape[:2]
        self.chunk_frames, self.chunk_atoms = chunk[:2]
        self.grid = (-(-self.n_frames // self.chunk_frames), -(-self.n_atoms // self.chunk_atoms))
        self.row_nbytes = 12 * self.chunk_atoms
        self.uncompressed, self.has_span_checksums = (
            uncompressed,
            uncompressed and verify and has_span_checksums,
        )
        self.verifies = verify
        self._all_columns = [
            self._column(
                column, None, slice(column * self.chunk_atoms, (column + 1) * self.chunk_atoms)
            )
            for column in range(self.grid[1])
        ]
        # Frames of all atoms are then stored in one run, as in memory.
        self._is_contiguous = uncompressed and self.chunk_atoms == self.n_atoms
        self._n_spans = spans_of_row(self.row_nbytes)
        self._last_selection: tuple[AtomIndices, list[ColumnAtoms]] | None = None
        self._decoded_row = self._last_partial_row = -1
        """Numbers of the row whose decoded chunks are kept, and of that last read in part."""
        self._decoded: dict[int, FloatArray] = {}

    def describe_chunk(self, row: int, column: int) -> str:
        first, atom = row * self.chunk_frames, column * self.chunk_atoms
        name = f"{self.name}, frames {first} to {min(first + self.chunk_frames, self.n_frames) - 1}"
        if self.grid[1] > 1:
            name += f", atoms {atom} to {min(atom + self.chunk_atoms, self.n_atoms) - 1}"
        return name

    def rows(self, start: int, stop: int) -> Iterator[RowFrames]:
        """Yield the part of frames ``start:stop`` in each row of chunks."""
        size = self.chunk_frames
        for row in range(start // size, (stop - 1) // size + 1):
            row_start, row_stop = row * size, min((row + 1) * size, self.n_frames)
            first, end = max(start, row_start), min(stop, row_stop)
            target = slice(first - start, end - start)
            is_complete = end - first == row_stop - row_start
            yield RowFrames(row, first - row_start, end - row_start, target, is_complete)

    def columns(self, atoms: AtomIndices | None) -> list[ColumnAtoms]:
        """Divide a selection by columns of chunks; the result of the last one is kept."""
        if atoms is None:
            return self._all_columns
        if self.grid[1] == 1:
            return [self._column(0, atoms, slice(None))]
        if self._last_selection is not None and np.array_equal(self._last_selection[0], atoms):
            return self._last_selection[1]
        column_of_atom = atoms // self.chunk_atoms
        columns = []
        for column in np.flatnonzero(np.bincount(column_of_atom)).tolist():
            positions = np.flatnonzero(column_of_atom == column)
            target: slice | AtomIndices = positions
            if positions[-1] - positions[0] + 1 == positions.size:
                target = slice(int(positions[0]), int(positions[-1]) + 1)
            columns.append(
                self._column(column, atoms[positions] - column * self.chunk_atoms, target)
            )
        self._last_selection = (atoms.copy(), columns)
        return columns

    def _column(
        self, column: int, atoms: AtomIndices | None, target: slice | AtomIndices
    ) -> ColumnAtoms:
        n_atoms = min(self.chunk_atoms, self.n_atoms - column * self.chunk_atoms)
        byte_bounds = None
        if self.uncompressed and self.row_nbytes >= MIN_PARTIAL_FRAME_NBYTES:
            begin, end = 0, 12 * n_atoms
            if atoms is not None:
                begin, end = 12 * int(atoms.min()), 12 * int(atoms.max()) + 12
            if self.has_span_checksums:
                begin, end = widen_to_spans(begin, end, self.row_nbytes)
            if (end - begin) * PARTIAL_READ_DIVISOR <= self.row_nbytes:
                byte_bounds = begin, end
        return ColumnAtoms(column, atoms, n_atoms, target, byte_bounds)

    @abstractmethod
    def locate(self, row: int, column: int) -> tuple[OpenFile, int, int]:
        """Return the file of a chunk, and offset and size of the chunk in it."""

    @abstractmethod
    def chunk_error(
        self, row: int, column: int, file: OpenFile, problem: str
    ) -> CorruptLayoutError:
        """Return the error for a chunk, which names file, array and frames."""

    # Arrays that do not verify need not define `_compare` and `_span_checksums`; uncompressed ones
    # need not define `_decode`.

    def _compare(self, row: int, column: int, file: OpenFile, crc: int, trailer: Bytes) -> None:
        """Compare the crc32c of a chunk with the stored one; raises CorruptLayoutError."""
        raise NotImplementedError

    def _span_checksums(self, start: int, stop: int, column: int, first: int, n_spans: int) -> Sums:
        """Return checksums of `n_spans` of frames ``start:stop`` of a column, (frames, spans)."""
        raise NotImplementedError

    def _decode(
        self, data: Bytes, out: FloatArray, atoms: AtomIndices | None, first: int, end: int
    ) -> None:
        """Decode frames ``first:end`` of a chunk into `out`; raises ValueError.

        It is called for all atoms and frames unless it `decodes_atoms`.
        """
        raise NotImplementedError

    def __getstate__(self) -> dict[str, Any]:
        cleared = {"_decoded_row": -1, "_last_partial_row": -1, "_decoded": {}}
        return {**self.__dict__, **cleared, "_last_selection": None}

    def close(self) -> None:
        self._decoded_row = self._last_partial_row = -1
        self._decoded.clear()

    def read(self, start: int, stop: int, atoms: AtomIndices | None, out: FloatArray) -> None:
        """Fill `out`, (stop - start, k, 3), with frames ``start:stop`` of `atoms` (None = all)."""
        if self._is_contiguous and atoms is None and out.flags.c_contiguous:
            row, first = divmod(start, self.chunk_frames)
            end = first + stop - start
            is_all = first == 0 and (end == self.chunk_frames or stop == self.n_frames)
            if end <= self.chunk_frames and not is_all:
                self._read_frames(row, first, out)
            else:
                self._read_contiguous(start, stop, out)
            return
        columns = self.columns(atoms)
        for row_frames in self.rows(start, stop):
            target = out[row_frames.target]
            only_requested = (
                self.decodes_atoms
                and row_frames.row != self._decoded_row
                and self._decodes_only_requested(row_frames, columns)
            )
            for column_atoms in columns:
                self._read_chunk(row_frames, column_atoms, target, only_requested=only_requested)

    def _decodes_only_requested(
        self, row_frames: RowFrames, columns: Sequence[ColumnAtoms]
    ) -> bool:
        """Return whether to decode only the requested frames of a row of chunks, and keep nothing.

        True if they are all frames of the row; or few, and others of the row were not requested
        just before. From a store, a chunk is fetched only once, and kept.
        """
        if row_frames.is_complete or not self.decodes_frames:
            return row_frames.is_complete
        previous_row, self._last_partial_row = self._last_partial_row, row_frames.row
        n_frames = row_frames.end - row_frames.first
        is_few = n_frames == 1 or n_frames * FEW_FRAMES_DIVISOR <= self.chunk_frames
        return (
            is_few
            and row_frames.row != previous_row
            and not self.locate(row_frames.row, columns[0].column)[0].remote
        )

    def check(self, row: int, column: int) -> FloatArray:
        """Return a complete chunk, compared with its checksum; raises CorruptLayoutError."""
        return self._load(row, column, verify=True)

    def chunk_range(self, row: int, column: int) -> list[ByteRange]:
        """Return the range of a chunk in its file; raises CorruptLayoutError."""
        file, offset, nbytes = self.locate(row, column)
        return [ByteRange(file, offset, nbytes + self.trailer_nbytes)]

    def byte_ranges(self, start: int, stop: int, atoms: AtomIndices | None) -> Iterator[ByteRange]:
        """Yield the ranges that `read` reads; raises the errors of `read`."""
        columns = self.columns(atoms)
        for row, first, end, _, is_complete in self.rows(start, stop):
            for column_atoms in columns:
                file, offset, nbytes = self.locate(row, column_atoms.column)
                if column_atoms.byte_bounds is not None:
                    low, high = column_atoms.byte_bounds
                    for frame in range(first, end):
                        yield ByteRange(file, offset + frame * self.row_nbytes + low, high - low)
                elif self.uncompressed and not is_complete:
                    nbytes = (end - first) * self.row_nbytes
                    yield ByteRange(file, offset + first * self.row_nbytes, nbytes)
                else:
                    yield ByteRange(file, offset, nbytes + self.trailer_nbytes)

    def openings(
        self,
        runs: FrameRuns,  # noqa: ARG002
        atoms: AtomIndices | None,  # noqa: ARG002
        n_arrays: int,  # noqa: ARG002
    ) -> Iterator[Opening]:
        """Yield the objects that reading runs opens first; `n_arrays` share the memory."""
        yield from ()

    def chunk_openings(self, row: int) -> Iterator[Opening]:  # noqa: ARG002
        """Yield the objects that are opened to read chunks of row `row`."""
        yield from ()

    def _fill(self, row: int, column: int, file: OpenFile, offset: int, *buffers: Buffer) -> None:
        try:
            file.fill(offset, *buffers)
        except CorruptLayoutError as error:
            problem = str(error).removeprefix(f"{file.path}: ")
            raise self.chunk_error(row, column, file, problem) from error

    def _check_frames(
        self,
        row: int,
        column: int,
        first: int,
        file: OpenFile,
        rows: NDArray[np.generic],
        span: int = 0,
    ) -> None:
        """Compare rows of a chunk, from its frame `first` on, and from span `span` of each on."""
        checksums = row_checksums(rows)
        start, n_rows = row * self.chunk_frames + first, len(rows)
        n_spans = len(checksums) // n_rows
        expected = self._span_checksums(start, start + n_rows, column, span, n_spans)
        difference = first_difference(checksums, expected)
        if difference is not None:
            problem = (
                f"the checksum of frame {start + difference // n_spans} is "
                f"{checksums[difference]:08x}, expected {expected.flat[difference]:08x}; the file "
                "is damaged or not what was written there, convert the source again"
            )
            raise self.chunk_error(row, column, file, problem)

    def _read_frames(self, row: int, first: int, out: FloatArray) -> None:
        """Read frames of an uncompressed chunk, from its frame `first` on."""
        file, offset, _ = self.locate(row, 0)
        offset += first * self.row_nbytes
        if self.has_span_checksums:
            start = row * self.chunk_frames + first
            checksums = self._span_checksums(start, start + len(out), 0, 0, self._n_spans)
            if file.fill_rows(offset, out, checksums, ROW_SPAN_NBYTES):
                return
        self._fill(row, 0, file, offset, out)
        if self.has_span_checksums:
            self._check_frames(row, 0, first, file, out)

    def _read_contiguous(self, start: int, stop: int, out: FloatArray) -> None:
        """Read straight into `out`, neighbouring chunks with one call."""
        chunks: CoalescedChunks = []
        file: OpenFile | None = None
        begin = end = max_nbytes = 0
        for row, first, _, target, is_complete in self.rows(start, stop):
            if not is_complete:
                if file is not None:  # first, since prefetched ranges are in order
                    self._read_coalesced(file, begin, chunks, max_nbytes)
                    chunks, file = [], None
                self._read_frames(row, first, out[target])
                continue
            next_file, offset, nbytes = self.locate(row, 0)
            data = out[target].reshape(-1).view(np.uint8)
            trailing = np.empty(nbytes - data.nbytes + self.trailer_nbytes, np.uint8)
            if file is not None and (
                next_file is not file or offset != end or offset + nbytes > begin + max_nbytes
            ):
                self._read_coalesced(file, begin, chunks, max_nbytes)
                chunks = []
            if next_file is not file:
                max_nbytes = (
                    DISK_CHECKSUM_RUN_NBYTES if next_file.is_on_disk else CHECKSUM_RUN_NBYTES
                )
            if not chunks:
                file, begin = next_file, offset
            chunks.append((row, data, trailing))
            end = offset + nbytes + self.trailer_nbytes
        if file is not None:
            self._read_coalesced(file, begin, chunks, max_nbytes)

    def _read_coalesced(
        self, file: OpenFile, offset: int, chunks: CoalescedChunks, max_nbytes: int
    ) -> None:
        row, data, trailing = chunks[0]
        crc = 0
        while self.verifies and data.nbytes > max_nbytes:  # then there is a single chunk
            self._fill(row, 0, file, offset, data[:max_nbytes])
            crc = crc32c(data[:max_nbytes], crc)
            data, offset = data[max_nbytes:], offset + max_nbytes
        chunks[0] = row, data, trailing
        self._fill(
            row, 0, file, offset, *(part for _, *buffers in chunks for part in buffers if part.size)
        )
        for row, data, trailing in chunks if self.verifies else ():
            crc = crc32c(data, crc)
            n_zeros = trailing.nbytes - self.trailer_nbytes  # after the last frame
            if n_zeros:
                crc = crc32c(trailing[:n_zeros], crc)
            self._compare(row, 0, file, crc, trailing[n_zeros:])
            crc = 0

    def _read_chunk(
        self,
        row_frames: RowFrames,
        column_atoms: ColumnAtoms,
        out: FloatArray,
        *,
        only_requested: bool,
    ) -> None:
        row, first, end, _, is_complete = row_frames
        column, atoms, n_atoms, target, byte_bounds = column_atoms
        if byte_bounds is not None:
            source = self._read_frame_bytes(row_frames, column, *byte_bounds)
            source, atoms = select_atoms(source, atoms, n_atoms, byte_bounds[0] // 4)
        elif self.uncompressed and not is_complete:
            source = self._read_frame_bytes(row_frames, column, 0, self.row_nbytes)
            source = source.reshape(len(source), -1, 3)
        elif only_requested:
            if atoms is None and n_atoms < self.chunk_atoms:
                atoms = np.arange(n_atoms)
            if isinstance(target, slice):
                self._decode_into(row, column, out[:, target], atoms, first, end)
                return
            source = np.empty((len(out), len(target), 3), np.float32)
            self._decode_into(row, column, source, atoms, first, end)
            atoms, n_atoms = None, len(target)
        else:
            source = self._chunk(row, column, keep=not is_complete)[first:end]
        if atoms is None:
            out[:, target] = source[:, :n_atoms]
        elif isinstance(target, slice):
            gather_atoms(source, atoms, out[:, target])
        else:
            out[:, target] = source[:, atoms]

    def _read_frame_bytes(
        self, row_frames: RowFrames, column: int, low: int, high: int
    ) -> FloatArray:
        """Return bytes ``low:high`` of requested frames of an uncompressed chunk, as floats."""
        row, first, end, *_ = row_frames
        file, offset, _ = self.locate(row, column)
        row_bytes = np.empty((end - first, high - low), np.uint8)
        first_byte = offset + first * self.row_nbytes + low
        if high - low == self.row_nbytes:
            self._fill(row, column, file, first_byte, row_bytes)
        else:
            for number, frame_bytes in enumerate(row_bytes):
                self._fill(row, column, file, first_byte + number * self.row_nbytes, frame_bytes)
        if self.has_span_checksums:
            self._check_frames(row, column, first, file, row_bytes, low // ROW_SPAN_NBYTES)
        return row_bytes.view("<f4")

    def _read_encoded(self, row: int, column: int, *, verify: bool) -> tuple[OpenFile, Bytes]:
        """Return the stored bytes of a chunk, valid until the next call in this thread."""
        file, offset, nbytes = self.locate(row, column)
        encoded = _scratch.buffer("encoded", nbytes + self.trailer_nbytes)
        self._fill(row, column, file, offset, encoded)
        if verify and (self.uncompressed or not self.checksums_of_decoded):
            self._compare(row, column, file, crc32c(encoded[:nbytes]), encoded[nbytes:])
        return file, encoded[:nbytes]

    def _decode_into(
        self, row: int, column: int, out: FloatArray, *selection: Any, verify: bool | None = None
    ) -> None:
        """Fill `out`; `selection`: atoms, first and end frame, as `_decode` takes them."""
        verify = self.verifies if verify is None else verify
        file, data = self._read_encoded(row, column, verify=verify)
        try:
            self._decode(data, out, *selection)
        except ValueError as error:
            raise self.chunk_error(
                row, column, file, f"a chunk cannot be decoded: {error}"
            ) from error
        if verify and self.checksums_of_decoded:
            self._compare(row, column, file, crc32c(out), data[:0])

    def _load(self, row: int, column: int, *, verify: bool) -> FloatArray:
        """Return a complete chunk with its padding; uncompressed, valid until the next call."""
        if self.uncompressed:
            data = self._read_encoded(row, column, verify=verify)[1]
            return data.view("<f4").reshape(-1, self.chunk_atoms, 3)
        chunk = np.empty((self.chunk_frames, self.chunk_atoms, 3), np.float32)
        self._decode_into(row, column, chunk, None, 0, self.chunk_frames, verify=verify)
        return chunk

    def _chunk(self, row: int, column: int, *, keep: bool) -> FloatArray:
        """Return a complete chunk; `keep`: whether to keep it, with others of its row."""
        if self._decoded_row == row and column in self._decoded:
            return self._decoded[column]
        chunk = self._load(row, column, verify=self.verifies)
        if keep:
            if self._decoded_row != row:
                self._decoded_row, self._decoded = row, {}
            self._decoded[column] = chunk
        return chunk


DEFLATE_MAX_RATIO = 1100
"""zlib decompresses a byte to at most about 1,030; a chunk that claims more is damaged."""
DAMAGED_ADVICE = "the file is damaged: convert the source again"


class ChunksInFile(ChunkedArray):
    """Chunks of one file.

    `offset`, `nbytes`, (frame chunks, atom chunks): offset of each chunk in `file`, and its stored
    bytes. Other arguments are those of `ChunkedArray`.
    """

    def __init__(
        self,
        name: str,
        shape: tuple[int, ...],
        chunk: tuple[int, int],
        file: OpenFile,
        offset: NDArray[np.int64],
        nbytes: NDArray[np.int64],
        **options: bool,
    ) -> None:
        super().__init__(name, shape, chunk, **options)
        self.file, self.offset, self.nbytes = file, offset, nbytes

    def locate(self, row: int, column: int) -> tuple[OpenFile, int, int]:
        return self.file, self.offset.item(row, column), self.nbytes.item(row, column)

    def chunk_error(
        self,
        row: int,
        column: int,
        file: OpenFile,  # noqa: ARG002
        problem: str,
    ) -> CorruptLayoutError:
        return CorruptLayoutError(f"{self.describe_chunk(row, column)}: {problem}")


def inflate(stored: NDArray[np.uint8], out: NDArray[Any]) -> None:
    """Decode a chunk of HDF5's filters shuffle and deflate into `out`; raises ValueError."""
    if out.nbytes > DEFLATE_MAX_RATIO * stored.nbytes:
        raise ValueError(f"{stored.nbytes} bytes cannot hold {out.nbytes}; {DAMAGED_ADVICE}")
    stream = zlib.decompressobj()
    try:  # one byte more than expected, since zlib checks its checksum only at the end
        inflated = stream.decompress(stored.data, out.nbytes + 1)
    except zlib.error as error:
        raise ValueError(f"{error}; {DAMAGED_ADVICE}") from error
    if not stream.eof and len(inflated) == out.nbytes:
        raise ValueError(f"its end is missing; {DAMAGED_ADVICE}")
    if len(inflated) != out.nbytes:
        raise ValueError(f"it has {len(inflated)} bytes, expected {out.nbytes}; {DAMAGED_ADVICE}")
    unshuffle(inflated, out.itemsize, out.reshape(-1).view(np.uint8).data)
