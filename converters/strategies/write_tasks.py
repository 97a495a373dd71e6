"""A write task: one piece of an output, which a worker reads, encodes and, if it may, stores."""

from __future__ import annotations

import pickle
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import accumulate
from typing import Any

import numpy as np

from mdio.core.errors import CorruptLayoutError
from mdio.core.frames import FrameBlock
from mdio.core.words import frames_text
from mdio.layouts.backend import read_encoded_chunks
from mdio.layouts.base import Layout
from mdio.layouts.registry import open_layout
from mdio.layouts.writer import EncodedChunk, LayoutWriter, NotFinite, PieceRecord, add_not_finite

Piece = tuple[int, int]

FILES_PER_WORKER = 4
"""Segments for each worker that are written at the same time: a slow worker should have its file to
itself."""


def order_for_concurrent_files(
    pieces: Sequence[Piece], segment_frames: Sequence[int], n_workers: int
) -> list[Piece]:
    """Return pieces in an order in which those written at the same time are in different files.

    A process that writes to a file holds its lock in the kernel, and others that write there wait.
    """
    if n_workers == 1 or len(segment_frames) < 2:
        return list(pieces)
    ends = list(accumulate(segment_frames))
    n_ordered = [0] * len(ends)
    sort_keys = []
    for piece in pieces:
        segment = bisect_right(ends, piece[0])
        sort_keys.append((segment // (FILES_PER_WORKER * n_workers), n_ordered[segment], piece))
        n_ordered[segment] += 1
    return [piece for *_, piece in sorted(sort_keys)]


def cut_batches(start: int, stop: int, max_frames: int | None) -> list[Piece]:
    """Return frames ``start:stop`` cut into runs of up to `max_frames`; None: one run."""
    max_frames = max_frames or stop - start
    return [(first, min(first + max_frames, stop)) for first in range(start, stop, max_frames)]


def describe_piece(piece: Piece) -> str:
    """Return the name of a piece for messages."""
    return frames_text(piece[0], piece[1])


def _copy_buffers(result: Any) -> Any:
    """Return a copy of records and chunks, in its own memory."""
    buffers: list[pickle.PickleBuffer] = []
    head = pickle.dumps(result, protocol=5, buffer_callback=buffers.append)
    return pickle.loads(head, buffers=map(bytearray, buffers))


class WriteTaskWorker:
    """Reads one piece from the source and gives it to the writer, batch by batch.

    Keeps the opened source and the memory of its frames from batch to batch. `former`: an output
    that is being repaired, whose intact pieces are copied.
    """

    reuses_memory = True
    """Whether the result may lie in memory that the next call overwrites."""
    overlaps_writes = False
    """Whether chunks may be in flight to the disk while the next piece is read: only where one
    process does all the work, and waits (`LayoutWriter.drain`) before it commits them."""

    def __init__(self, source: Layout, writer: LayoutWriter, former: Layout | None = None) -> None:
        self.source = source
        self.writer = writer
        self.former = former
        self._verified_former: Layout | None = None
        """The former output, compared with its checksums, if it keeps boxes, times and steps."""
        if former is not None and former.facts.stores_columns_exactly:
            self._verified_former = open_layout(former.path)
        self._buffer: FrameBlock | None = None
        self._is_prefetched = False

    @property
    def _batch_frames(self) -> int | None:
        """Frames that are read at a time; None: those of a piece."""
        # What is sent to the owner may lie in memory that the next batch would overwrite.
        return None if self.writer.plan.writing.by_owner else self.writer.facts.batch_frames

    def prefetch_items(self, pieces: Iterable[Piece]) -> None:
        """Ask for the bytes of pieces while those before them are written."""
        if self.former is None:
            self._is_prefetched = True
            self.source.prefetch(
                batch for piece in pieces for batch in cut_batches(*piece, self._batch_frames)
            )

    def __call__(self, piece: Piece) -> tuple[PieceRecord, list[EncodedChunk]]:
        """Return the record, and the chunks that the owner has to store."""
        start, stop = piece
        stores_here = self.writer.facts.parallel_store and not self.writer.plan.writing.by_owner
        batch_columns, unstored = [], []
        crcs: dict[str, Sequence[int]] = {}
        nbytes = 0
        not_finite: NotFinite | None = None
        former_chunks = self._former_chunks(start, stop)
        batches = cut_batches(start, stop, self._batch_frames)
        if former_chunks is None and not self._is_prefetched:
            self.source.prefetch(batches)
        for first, end in batches:
            columns = self._former_columns(first, end)
            if former_chunks is None:
                block = self._read(first, end)
                batch_not_finite = NotFinite.count_in(block.positions, first - start)
                not_finite = add_not_finite(not_finite, batch_not_finite)
                columns = columns or block
                chunks = self.writer.encode(first, block)
            else:
                columns = columns or self.source.read(first, end, atoms=[])
                chunks, former_chunks = former_chunks, []  # all with the first batch
            for chunk in chunks:
                if stores_here:
                    self.writer.store(chunk)
                else:
                    unstored.append(chunk)
                crcs[chunk.key] = chunk.crcs
                nbytes += chunk.nbytes
            batch_columns.append((columns.box.copy(), columns.time.copy(), columns.step.copy()))
        if not self.overlaps_writes:
            self.writer.drain()
        box, time, step = (np.concatenate(column) for column in zip(*batch_columns, strict=True))
        result = PieceRecord(start, stop, crcs, nbytes, box, time, step, not_finite), unstored
        return result if self.reuses_memory else _copy_buffers(result)

    def _former_chunks(self, start: int, stop: int) -> list[EncodedChunk] | None:
        """Return the encoded piece in the former output, if it is complete there."""
        with suppress(CorruptLayoutError):
            return None if self.former is None else read_encoded_chunks(self.former, start, stop)
        return None

    def _former_columns(self, start: int, stop: int) -> FrameBlock | None:
        """Return boxes, times and steps of the former output, if they are intact."""
        with suppress(CorruptLayoutError):
            return (
                None
                if self._verified_former is None
                else self._verified_former.read(start, stop, atoms=[])
            )
        return None

    def _read(self, start: int, stop: int) -> FrameBlock:
        """Return frames of the source, in memory that the next call overwrites."""
        buffer = self._buffer
        if buffer is None or buffer.n_frames < stop - start:
            buffer = self._buffer = self.source.read(start, stop)
            return buffer
        return self.source.read(start, stop, out=buffer.frames(slice(0, stop - start)))

    def close(self) -> None:
        """Close the source."""
        self.source.close()
        if self._verified_former is not None:
            self._verified_former.close()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_buffer": None, "_is_prefetched": False, "overlaps_writes": False}
