"""What one worker does with one block: read a little, compute it, read on.

The rows of one block as they come: kept in one array, written to shared memory, or reduced.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mdio.analysis.kernels.kernel import Prepared, check_rows, kernel_name
from mdio.analysis.reducers import Reducer, Stack, State
from mdio.core.blocks import block_name, sub_blocks
from mdio.core.errors import BlockError, MdioError, error_text
from mdio.core.files.reading import reads
from mdio.core.frames import FrameBlock
from mdio.core.timing import BlockTiming, Stopwatch, worker_name
from mdio.layouts.base import Layout, cache_notes

if TYPE_CHECKING:
    from mdio.parallel.pool import SharedRows


class RowCollector:
    """What one block has given so far.

    Rows that are kept lie in one array from the first on: what is computed piece by piece is never
    joined, and a kernel can write where its rows shall stay.

    `reducer`: what becomes of the rows. `n_frames`: of the block. `shared`: where rows that are
    kept may go instead, if it accepts them. `first_row`: which of the shared rows is that of the
    block's first frame.
    """

    def __init__(
        self, reducer: Reducer, n_frames: int, shared: SharedRows | None = None, first_row: int = 0
    ) -> None:
        self._reducer = reducer
        self._n_frames = n_frames
        self._shared = shared
        self._first_row = first_row
        self._keeps = type(reducer) is Stack
        self._kept: _Kept | _Shared | None = None
        self._state: State | None = None
        self.row_shape: tuple[int, ...] | None = None
        """Of the rows that have come."""

    def room(self, n_frames: int) -> NDArray[Any] | None:
        """Return where to put the next rows; None as long as their shape is not known."""
        return None if self._kept is None else self._kept.room(n_frames)

    def add(self, rows: NDArray[Any]) -> None:
        """Take the next rows.

        Raises BlockError: they have another shape than those before.
        """
        shape = rows.shape[1:]
        if self.row_shape is None:
            self.row_shape = shape
        elif shape != self.row_shape and self._reducer.of_one_shape:
            raise BlockError(f"rows of different shapes, {self.row_shape} and then {shape}")
        if not self._keeps:
            lifted = self._reducer.lift(np.array(rows) if self._reducer.keeps_rows else rows)
            self._state = (
                lifted if self._state is None else self._reducer.merge(self._state, lifted)
            )
            return
        if self._kept is None:
            self._kept = self._start(rows)
        if rows.dtype != self._kept.dtype:
            self._kept = self._kept.widened(np.result_type(self._kept.dtype, rows))
        self._kept.add(rows)

    def _start(self, rows: NDArray[Any]) -> _Kept | _Shared:
        shape, dtype = rows.shape[1:], rows.dtype
        if self._shared is not None and self._shared.accepts(shape, dtype):
            return _Shared(self._shared, self._first_row, (self._n_frames, *shape), dtype)
        return _Kept(np.empty((self._n_frames, *shape), dtype), 0)

    @property
    def state(self) -> State | None:
        """The state of all rows; None if they are among the shared ones."""
        return self._kept.state if self._kept is not None else self._state


class _Kept:
    """Rows in an array of this process."""

    def __init__(self, rows: NDArray[Any], n_kept: int) -> None:
        self._rows = rows
        self._n_kept = n_kept
        self._room: NDArray[Any] | None = None
        self.dtype = rows.dtype

    def room(self, n_frames: int) -> NDArray[Any]:
        self._room = self._rows[self._n_kept : self._n_kept + n_frames]
        return self._room

    def add(self, rows: NDArray[Any]) -> None:
        if rows is not self._room:
            self._rows[self._n_kept : self._n_kept + len(rows)] = rows
        self._n_kept += len(rows)

    def widened(self, dtype: np.dtype[Any]) -> _Kept:
        return _Kept(self._rows.astype(dtype, copy=False), self._n_kept)

    @property
    def state(self) -> State:
        return ([self._rows],)


class _Shared:
    """Rows that are written to memory of the parent; those of one read are computed in a buffer."""

    def __init__(
        self, shared: SharedRows, first: int, shape: tuple[int, ...], dtype: np.dtype[Any]
    ) -> None:
        self._shared = shared
        self._first = first
        self._at = first
        self._shape = shape
        self._room = np.empty((0, *shape[1:]), dtype)
        self.dtype = dtype

    def room(self, n_frames: int) -> NDArray[Any]:
        if len(self._room) < n_frames:
            self._room = np.empty((n_frames, *self._shape[1:]), self.dtype)
        return self._room[:n_frames]

    def add(self, rows: NDArray[Any]) -> None:
        self._shared.write(self._at, rows)
        self._at += len(rows)

    def widened(self, dtype: np.dtype[Any]) -> _Kept:
        """Take back what has been written: the parent's rows are all of one type."""
        n_kept = self._at - self._first
        rows = np.empty(self._shape, dtype)
        rows[:n_kept] = self._shared.read(self._first, self._at)
        return _Kept(rows, n_kept)

    @property
    def state(self) -> None:
        return None


READ_NBYTES = 4 << 20
"""Decoded bytes of whole frames that one read may span: few enough to stay in the cores' caches
until they are computed, many enough that the cost of a call does not count."""

DENSE_STEP = 2
"""Up to this step (or the frames of a chunk, if more), frames in between are read and dropped."""

NumberedBlock = tuple[int, range]
Progress = Callable[[int, int], None]
"""Called with (frames, decoded bytes) done since the last call."""
RowShape = tuple[int, ...]


def rank_name(rank: int) -> str:
    """Return what records call this process, which is a rank of an MPI program."""
    return f"rank {rank} ({worker_name()})"


def block_label(item: NumberedBlock) -> str:
    """Return how messages call a block."""
    return f"block {item[0]} ({block_name(item[1])})"


@dataclass(slots=True)
class BlockResult:
    """What a worker sends back."""

    state: State | None
    """None if the block's rows have gone to their `RowDestination`."""
    time: NDArray[np.float64]
    timing: BlockTiming
    row_shape: RowShape | None


@dataclass(frozen=True, slots=True)
class RowDestination:
    """Where the rows of all frames may go, instead of back with each block."""

    rows: SharedRows
    frames: range
    """Which frame each row is of."""


def check_shapes(
    row_shapes: Sequence[tuple[NumberedBlock, RowShape | None]], layout: Layout, prepared: Prepared
) -> None:
    """Raise BlockError if rows that need one shape differ between blocks (in order)."""
    if not prepared.reducer.of_one_shape:
        return
    first, expected = row_shapes[0]
    for block, shape in row_shapes:
        if shape != expected:
            raise BlockError(
                f"{layout.path}: {block_label(block)}: {kernel_name(prepared.function)} returned "
                f"rows of shape {shape}, but in {block_label(first)} rows of shape {expected}; "
                "rows of different shapes cannot be joined"
            )


class BlockWork:
    """Reads and computes one block; opens the trajectory once in each process.

    Memory stays bounded whatever the size of a block: a read fills one buffer, which is used again.

    `layout`: the trajectory. `prepared`: what to compute. `opened_s`: how long opening took, if
    `layout` is open already: the first block here accounts for it. `on_read`: called with (frames,
    decoded bytes) after each read has been computed, in this process. `place`: where rows that are
    kept may go. `rank`: this process', under MPI.
    """

    def __init__(
        self,
        layout: Layout,
        prepared: Prepared,
        opened_s: float = 0.0,
        on_read: Callable[[int, int], None] | None = None,
        place: RowDestination | None = None,
        rank: int | None = None,
    ) -> None:
        self.rank = rank
        self.layout = layout
        self.prepared = prepared
        self.place = place
        self._opened_s = opened_s
        self._on_read = on_read
        self._edges: NDArray[np.int64] | None = None
        self._buffer: FrameBlock | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Leave behind what belongs to this process."""
        return {"layout": self.layout, "prepared": self.prepared, "place": self.place}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]

    def __call__(self, item: NumberedBlock) -> BlockResult:
        """Compute one block.

        Raises BlockError: the kernel failed, or its result has not one row a frame.
        """
        number, block = item
        timing = BlockTiming(number, block, rank=self.rank)
        if self.rank is not None:
            timing.worker = rank_name(self.rank)
        whole, watch = Stopwatch(), Stopwatch()
        info = self.layout.info
        if self._edges is None:
            self._edges = self.layout.boundaries()
            timing.t_open_s = watch.lap() + self._opened_s
            timing.began_unix_s -= self._opened_s  # as if it had been opened just now
        span = max(1, READ_NBYTES // max(1, 12 * info.n_atoms * len(self.prepared.fields)))
        loop = Stopwatch()
        collected = self._collected(block)
        times = np.empty(len(block))
        at = 0
        runs = list(sub_blocks(self._edges, block, span))
        if self._is_dense(block, info.chunk_frames):
            reads_to_come = ((run[0], run[-1] + 1) for run in runs)
        else:
            reads_to_come = ((frame, frame + 1) for frame in block)
        self.layout.prefetch(reads_to_come, self.prepared.atoms)
        slowest: range | None = None
        for run in runs:
            watch.lap()
            source, cached = reads.nbytes_source, reads.nbytes_cache
            frames = self._read(run, info.chunk_frames)
            read_s = watch.lap()
            timing.t_io_s += read_s
            if read_s > timing.slowest_read_s:
                timing.slowest_read_s, slowest = read_s, run
            timing.nbytes_source += reads.nbytes_source - source
            timing.nbytes_cache += reads.nbytes_cache - cached
            self._compute(item, frames, run, collected)
            if self.prepared.cut is not None:
                timing.cut_frames += [run[row] for row in self.prepared.cut.frames(frames)]
            timing.t_comp_s += watch.lap()
            times[at : at + len(run)] = frames.time
            at += len(run)
            timing.nbytes_read += frames.nbytes
            if self._on_read is not None:
                self._on_read(len(run), frames.nbytes)
        timing.notes = cache_notes(self.layout)
        if slowest is not None:  # of what the node has, no file of the source is looked at
            from_source = timing.nbytes_source or not timing.nbytes_cache
            path = str(self.layout.path)
            timing.slowest_file = self._file_of(slowest) if from_source else path
        timing.t_end_loop_s = watch.lap()
        timing.t_all_frame_s = loop.lap()
        timing.t_block_s = whole.lap()
        if timing.t_open_s:  # what was opened before the call counts as part of it
            timing.t_block_s += self._opened_s
        return BlockResult(collected.state, times, timing, collected.row_shape)

    def _file_of(self, run: range) -> str:
        """Return the file in which some frames begin."""
        ranges = self.layout.byte_ranges(run[0], run[0] + 1, self.prepared.atoms)
        return str(next((one.file.path for one in ranges), self.layout.path))

    def _collected(self, block: range) -> RowCollector:
        reducer, place = self.prepared.reducer, self.place
        if place is None:
            return RowCollector(reducer, len(block))
        return RowCollector(reducer, len(block), place.rows, place.frames.index(block.start))

    def _compute(
        self, item: NumberedBlock, frames: FrameBlock, run: range, collected: RowCollector
    ) -> None:
        """Compute the rows of one read and collect them."""
        function: Any = self.prepared.function
        room = collected.room(len(run)) if self.prepared.fills else None
        block = f"{self.layout.path}: {block_label(item)}"
        where = "" if run == item[1] else f" (in {block_name(run)})"
        try:
            rows = function(frames) if room is None else function(frames, out=room)
        except MdioError:
            raise
        except Exception as error:
            raise BlockError(f"{block} failed: {error_text(error)}{where}") from error
        checked = check_rows(rows, run, function, f"{block}{where}")
        try:
            collected.add(checked)
        except BlockError as error:
            raise BlockError(
                f"{block}{where}: {kernel_name(function)} returned {error}, which cannot be joined"
            ) from None

    @staticmethod
    def _is_dense(run: range, chunk_frames: int | None) -> bool:
        """Return whether frames in between are read and dropped."""
        return run.step <= max(DENSE_STEP, chunk_frames or 1)

    def _read(self, run: range, chunk_frames: int | None) -> FrameBlock:
        first, beyond = run[0], run[-1] + 1
        if self._is_dense(run, chunk_frames):
            dense = self.layout.read(
                first, beyond, atoms=self.prepared.atoms, out=self._room(beyond - first)
            )
            return dense if run.step == 1 else dense.frames(slice(None, None, run.step))
        out = self._room(len(run))
        for row, frame in enumerate(run):
            self.layout.read(
                frame, frame + 1, atoms=self.prepared.atoms, out=out.frames(slice(row, row + 1))
            )
        return out

    def _room(self, n_frames: int) -> FrameBlock:
        """Return a block of `n_frames` to read into."""
        if self._buffer is None or self._buffer.n_frames < n_frames:
            info, prepared = self.layout.info, self.prepared
            self._buffer = FrameBlock.empty(
                n_frames,
                info.n_atoms if prepared.atoms is None else len(prepared.atoms),
                velocities=info.has_velocities and "velocities" in prepared.fields,
                forces=info.has_forces and "forces" in prepared.fields,
            )
        return self._buffer.frames(slice(0, n_frames))
