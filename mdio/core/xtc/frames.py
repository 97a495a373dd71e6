"""Frames of an XTC file, decoded into the caller's arrays."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mdio.core.closing import Closing
from mdio.core.errors import FrameRangeError
from mdio.core.files.in_flight import asked
from mdio.core.files.index import FrameIndex
from mdio.core.files.piece_sums import PieceSums
from mdio.core.files.reading import OpenFile
from mdio.core.files.requests import ByteRange
from mdio.core.xtc import native as xtc_native
from mdio.core.xtc.header import HEADER_NBYTES, XTCHeader, parse_header
from mdio.core.xtc.native import source_errors

RUN_NBYTES = 4 << 20
"""Compressed bytes that are read at once: enough for one call to cost nothing, and they stay in
cache until they are decoded."""


class XTCFrames(Closing):
    """The frames of one open XTC file; not for several threads at once.

    `path`: the file. `index`: its frames, from `scan`. `sums`: checksums that all bytes are
    compared with when they are read; None = not.
    Raises SourceError: the file cannot be opened.
    """

    def __init__(self, path: Path, index: FrameIndex, sums: PieceSums | None = None) -> None:
        self.path = path
        self.sums = sums
        self.n_atoms = index.n_atoms
        self._edges = np.append(index.offsets, np.int64(index.nbytes))
        self._buffer = np.empty(0, np.uint8)
        self.file = OpenFile(path)
        self._fd = self.file.fileno()

    def header(self, frame: int) -> XTCHeader:
        """Return the header of one frame; raises FrameRangeError or SourceError."""
        self._check_range(frame, frame + 1)
        offset = int(self._edges[frame])
        with source_errors(self.path):
            (raw,) = self._heads(self._edges[frame : frame + 2])
            return parse_header(raw, frame, offset)

    def read(
        self,
        start: int,
        stop: int,
        positions: NDArray[np.float32],
        vectors: NDArray[np.float32],
        time: NDArray[np.float64],
        step: NDArray[np.int64],
        atoms: NDArray[np.int64] | None = None,
        n_threads: int = 1,
    ) -> None:
        """Read a run of F = ``stop - start`` frames into the caller's arrays.

        `start`, `stop`: first frame, and one beyond the last. `positions`, (F, k, 3) float32:
        filled with coordinates, angstrom. Frames are contiguous, with any stride between them. With
        k = 0 only headers are read. `vectors`, (F, 3, 3) float32: filled with box vectors, nm, as
        they are in the file; C-contiguous, as are the others. `time`, (F,) float64: filled, ps.
        `step`, (F,) int64: filled. `atoms`, (k,) int64, optional: which atoms, in which order; all
        by default. Decoding ends after the last of them. `n_threads`: threads that decode, each its
        own frames.
        Raises FrameRangeError: frames or atoms that are not there. ValueError: arrays of other
        shapes. SourceError: the bytes are not what the index says, or do not decode.
        """
        self._check_range(start, stop)
        n_wanted = self.n_atoms if atoms is None else len(atoms)
        n_frames = stop - start
        _check_array(positions[:1], (min(n_frames, 1), n_wanted, 3), np.float32)
        _check_array(positions, (n_frames, n_wanted, 3), np.float32, contiguous=False)
        _check_array(vectors, (n_frames, 3, 3), np.float32)
        _check_array(time, (n_frames,), np.float64)
        _check_array(step, (n_frames,), np.int64)
        if atoms is not None and n_wanted and not 0 <= atoms.min() <= atoms.max() < self.n_atoms:
            raise FrameRangeError(
                f"{self.path}: atoms {atoms.min()} to {atoms.max()} asked for, "
                f"but there are 0 to {self.n_atoms - 1}"
            )
        edges = self._edges[start : stop + 1]
        with source_errors(self.path):
            if n_wanted:
                self._decode(start, edges, (positions, vectors, time, step), atoms, n_threads)
                return
            if self.file.remote is not None:
                self._read_headers(start, edges, vectors, time, step)
                return
            if self.sums is not None:
                _ = list(self._heads(edges))
            xtc_native.kernels.read_headers(
                self._fd, start, edges, self.n_atoms, vectors, time, step
            )

    def _read_headers(self, start: int, edges: NDArray[np.int64], *out: NDArray[Any]) -> None:
        """Read headers of an object's frames."""
        spans = itertools.pairwise(edges.tolist())
        for row, (raw, (begin, end)) in enumerate(zip(self._heads(edges), spans, strict=True)):
            head = parse_header(raw, start + row, begin, self.n_atoms)
            if head.nbytes != end - begin:
                raise ValueError(
                    f"frame {start + row} at byte {begin}: {head.nbytes} bytes, expected "
                    f"{end - begin}"
                )
            values = np.reshape(head.vectors_nm, (3, 3)), head.time_ps, head.step
            for array, value in zip(out, values, strict=True):
                array[row] = value

    def byte_range(self, start: int, stop: int) -> ByteRange:
        """Return where a run of frames lies."""
        begin, end = int(self._edges[start]), int(self._edges[stop])
        return ByteRange(self.file, begin, end - begin)

    def close(self) -> None:
        """Close the file; harmless if it is closed."""
        self.file.close()

    def _check_range(self, start: int, stop: int) -> None:
        n_frames = len(self._edges) - 1
        if not 0 <= start <= stop <= n_frames:
            raise FrameRangeError(
                f"{self.path}: frames {start}:{stop} asked for, but it has {n_frames} frames"
            )

    def _decode(
        self,
        start: int,
        edges: NDArray[np.int64],
        out: tuple[NDArray[Any], ...],
        atoms: NDArray[np.int64] | None,
        n_threads: int,
    ) -> None:
        """Read and decode into the arrays of `out`, some MiB at a time."""
        targets = None
        if atoms is not None:
            atoms = np.ascontiguousarray(atoms, np.int64)
            if (atoms[1:] < atoms[:-1]).any():
                targets = np.argsort(atoms, kind="stable")
                atoms = atoms[targets]
        first, n_frames = 0, len(edges) - 1
        while first < n_frames:
            last = int(np.searchsorted(edges, edges[first] + RUN_NBYTES, side="right")) - 1
            last = min(max(last, first + 1), n_frames)
            run = slice(first, last)
            positions, vectors, time, step = (array[run] for array in out)
            data = self._read_run(int(edges[first]), int(edges[last] - edges[first]))
            xtc_native.kernels.decode(
                data,
                start + first,
                np.ascontiguousarray(edges[first : last + 1]),
                self.n_atoms,
                positions,
                vectors,
                time,
                step,
                atoms,
                targets,
                n_threads,
            )
            first = last

    def _heads(self, edges: NDArray[np.int64]) -> Iterator[bytes]:
        """Yield how frames begin, compared with checksums if there are any.

        Those of an object are asked for many at a time.
        """
        spans = [(begin, begin + HEADER_NBYTES) for begin in edges[:-1].tolist()]
        if self.sums is not None:
            spans = [self.sums.around(begin, begin + 1) for begin, _ in spans]
        ahead = spans if self.file.remote is not None and len(spans) > 1 else []
        with asked(ByteRange(self.file, begin, end - begin) for begin, end in ahead):
            for begin, end in spans:
                data = self.file.peek(begin, end - begin)
                if self.sums is not None:
                    self.sums.check(self.path, begin, memoryview(data))
                yield data

    def _read_run(self, offset: int, nbytes: int) -> NDArray[np.uint8]:
        """Return the buffer with `nbytes` of the file and the padding that the decoder wants."""
        room = nbytes + xtc_native.kernels.PADDING
        if self._buffer.size < room:
            self._buffer = np.zeros(room, np.uint8)
        view = self._buffer.data[:nbytes]
        self.file.fill(offset, view)
        if self.sums is not None:
            self.sums.check(self.path, offset, view)
        return self._buffer[:room]


def _check_array(
    array: NDArray[Any], shape: tuple[int, ...], dtype: type, *, contiguous: bool = True
) -> None:
    if (
        array.shape != shape
        or array.dtype != dtype
        or (contiguous and not array.flags.c_contiguous)
        or not array.flags.writeable
    ):
        raise ValueError(
            f"an array of {array.shape} {array.dtype} was given; "
            f"a writable, contiguous one of {shape} {dtype.__name__} is needed"
        )
