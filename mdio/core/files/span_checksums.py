"""Checksums of spans (runs of bytes), so that parts of a large array can be verified alone.

Rows of arrays (the frames of an uncompressed chunk) are cut into spans of 64 KiB, a short row is
one span. In files of a native format, the bytes before the first frame are one span; the header
of each frame (which is enough to read times and boxes) is one, and the rest of the frame is cut
into spans of 16 KiB; a small frame is one span.
"""

from __future__ import annotations

import struct
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mdio.core.errors import CorruptLayoutError
from mdio.core.kernels import crc32c_joined, crc32c_spans

if TYPE_CHECKING:
    from mdio.core.files.index import FrameIndex

Sums = NDArray[np.uint32]

ROW_SPAN_NBYTES = 64 << 10
"""Bytes of the longest span of a row of an array; reads are widened to whole spans."""
SPAN_NBYTES = 16 << 10
"""Bytes of the longest span of a file of frames. Reads of a few atoms are widened to whole spans,
and with 64 KiB took up to twice as long."""
SMALL_FRAME_NBYTES = 4096
"""Frames up to this size are one span: reading less of them would not be faster."""
HEADER = struct.Struct("<QQQQ")
"""Number of frames, bytes of a frame's header, bytes of a span, number of spans. Behind it: the
offsets of frames and of the end of the last one (int64), and the crc32c of each span (uint32)."""


def spans_of_row(row_nbytes: int) -> int:
    """Return the number of spans of a row of an array."""
    return -(-row_nbytes // ROW_SPAN_NBYTES)


def widen_to_spans(begin: int, end: int, row_nbytes: int) -> tuple[int, int]:
    """Return the bounds of the spans that bytes ``begin:end`` of a row lie in."""
    last = min(spans_of_row(end) * ROW_SPAN_NBYTES, row_nbytes)
    return begin // ROW_SPAN_NBYTES * ROW_SPAN_NBYTES, last


@lru_cache(maxsize=64)  # the same few shapes are read again and again
def _row_edges(n_rows: int, row_nbytes: int) -> NDArray[np.int64]:
    spans = np.arange(0, row_nbytes, ROW_SPAN_NBYTES)
    edges = (np.arange(n_rows)[:, None] * row_nbytes + spans).reshape(-1)
    return np.append(edges, np.int64(n_rows * row_nbytes))


def row_checksums(rows: NDArray[Any]) -> Sums:
    """Return the checksums of the spans of rows of an array, row after row.

    The rows are C-contiguous, and complete or begin with one of their spans.
    """
    n_rows = len(rows)
    return crc32c_spans(rows, _row_edges(n_rows, rows.nbytes // n_rows))


def total_and_row_checksums(rows: NDArray[Any]) -> tuple[int, list[int]]:
    """Return the crc32c of an array's rows as a whole, and `row_checksums`, in one pass."""
    sums = row_checksums(rows)
    total = crc32c_joined(sums, _row_edges(len(rows), rows.nbytes // len(rows)))
    return total, sums.tolist()


def first_difference(sums: Sums, expected: Sums) -> int | None:
    """Return the index of the first checksum that differs; None if none does."""
    if sums.tobytes() == expected.tobytes():  # much faster than NumPy, where there are few
        return None
    indices = np.flatnonzero(sums != expected.reshape(-1))  # none if only the byte order differs
    return int(indices[0]) if len(indices) else None


def span_edges(
    offsets: NDArray[np.int64], head_nbytes: int, span_nbytes: int = SPAN_NBYTES
) -> NDArray[np.int64]:
    """Return the offsets at which spans of frames begin, and that of the end.

    `offsets`, (F + 1,) int64: where each frame begins, and where the last one ends. `head_nbytes`:
    bytes of a frame's header.
    """
    sizes = np.diff(offsets)
    body_nbytes = np.where(sizes > max(SMALL_FRAME_NBYTES, head_nbytes), sizes - head_nbytes, 0)
    n_spans = 1 + -(-body_nbytes // span_nbytes)
    first = np.cumsum(n_spans) - n_spans
    span = np.arange(int(n_spans.sum())) - np.repeat(first, n_spans)
    edges = np.repeat(offsets[:-1], n_spans)
    edges += np.where(span > 0, head_nbytes + (span - 1) * span_nbytes, 0)
    return np.append(edges, offsets[-1:])


class SpanChecksums:
    """The checksums of the spans of one file of frames.

    `offsets`, (F + 1,) int64: where each frame begins, and where the last one, and the file, ends.
    `head_nbytes`: bytes of a frame's header. `crcs`: crc32c of the bytes before the first frame, if
    there are any, and of each span.
    """

    def __init__(
        self,
        offsets: NDArray[np.int64],
        head_nbytes: int,
        crcs: Sequence[int] | Sums,
        span_nbytes: int = SPAN_NBYTES,
    ) -> None:
        self.offsets, self.head_nbytes, self.span_nbytes = offsets, head_nbytes, span_nbytes
        edges = span_edges(offsets, head_nbytes, span_nbytes)
        if offsets[0]:
            edges = np.insert(edges, 0, 0)
        self.edges = edges
        self.crcs = np.asarray(crcs, np.uint32)
        self._edge_list: list[int] = edges.tolist()  # bisect is faster in lists
        if len(self.crcs) != len(edges) - 1:
            raise ValueError(f"{len(self.crcs)} checksums for {len(edges) - 1} spans")

    @property
    def table(self) -> bytes:
        """The bytes of the table that is stored on disk."""
        header = HEADER.pack(
            len(self.offsets) - 1, self.head_nbytes, self.span_nbytes, len(self.crcs)
        )
        return header + self.offsets.astype("<i8").tobytes() + self.crcs.astype("<u4").tobytes()

    @classmethod
    def from_table(cls, table: bytes) -> SpanChecksums:
        """Return the checksums in a stored table; raises ValueError if it is invalid."""
        if len(table) < HEADER.size:
            raise ValueError(f"a table of {len(table)} bytes")
        n_frames, head_nbytes, span_nbytes, n_spans = HEADER.unpack_from(table)
        end = HEADER.size + 8 * (n_frames + 1)
        if len(table) != end + 4 * n_spans:
            raise ValueError(f"a table of {len(table)} bytes, expected {end + 4 * n_spans}")
        offsets = np.frombuffer(table, "<i8", n_frames + 1, HEADER.size).astype(np.int64)
        crcs = np.frombuffer(table, "<u4", n_spans, end)
        return cls(offsets, head_nbytes, crcs, span_nbytes)

    @property
    def nbytes(self) -> int:
        """Bytes of the file."""
        return int(self.offsets[-1])

    def index(self, n_atoms: int) -> FrameIndex:
        """Return the offsets of the frames."""
        from mdio.core.files.index import FrameIndex

        return FrameIndex(self.offsets[:-1], self.nbytes, n_atoms)

    def of_frames(self, start: int, stop: int) -> Sums:
        """Return the checksums of the spans of frames ``start:stop``."""
        first, end = np.searchsorted(self.edges, self.offsets[[start, stop]])
        return self.crcs[first:end]

    def span_bounds(self, begin: int, end: int) -> tuple[int, int]:
        """Return the bounds of the spans that contain bytes ``begin:end`` of the file."""
        first = bisect_right(self._edge_list, begin) - 1
        last = bisect_left(self._edge_list, end)
        return self._edge_list[max(first, 0)], self._edge_list[min(last, len(self.crcs))]

    def check(self, path: Path, begin: int, data: memoryview) -> None:
        """Raise CorruptLayoutError if `data`, whole spans from byte `begin` on, have changed."""
        first = bisect_left(self._edge_list, begin)
        last = bisect_left(self._edge_list, begin + len(data), first)
        sums = crc32c_spans(data, self.edges[first : last + 1])
        index = first_difference(sums, self.crcs[first:last])
        if index is not None:
            span = first + index
            offset, end = self._edge_list[span : span + 2]
            frame = int(np.searchsorted(self.offsets, offset, side="right")) - 1
            place = "its header" if frame < 0 else f"frame {frame} of this segment"
            raise CorruptLayoutError(
                f"{path}: bytes {offset} to {end - 1} ({place}) have the crc32c {sums[index]:08x}, "
                f"expected {self.crcs[span]:08x}: they have changed since they were written; "
                "split or convert the source again"
            )
