"""Analyses one block: reads frames, calls the kernel on them, and collects its rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mdio.analysis.kernels.kernel import Prepared, check_rows, kernel_name
from mdio.analysis.reducers import Reducer, Stack, State, call_reducer
from mdio.core.blocks import block_name, sub_blocks
from mdio.core.errors import BlockError, MdioError, error_text
from mdio.core.files.reading import reads
from mdio.core.frames import FIELDS, FrameBlock
from mdio.core.signals import raise_received_signal
from mdio.core.timing import BlockTiming, Stopwatch, worker_name
from mdio.layouts.base import Layout, cache_notes
from mdio.parallel.executors import OneAtATime

if TYPE_CHECKING:
    from mdio.parallel.pool import SharedRows


class RowCollector:
    """Collects the rows of one block: stacks them, or reduces them read by read.

    Stacked rows are stored in one array, in which a kernel can write in place; or, where `shared`
    memory accepts their shape and type, they are computed in a buffer and written there, from
    `first_row` on.
    """

    def __init__(
        self, reducer: Reducer, n_frames: int, shared: SharedRows | None = None, first_row: int = 0
    ) -> None:
        self._reducer = reducer
        self._n_frames = n_frames
        self._shared = shared
        self._first_row = first_row
        self._stacks = type(reducer) is Stack
        self._rows: NDArray[Any] | None = None
        """All rows; if they are shared, a buffer for those of one read."""
        self._n_rows = 0
        self._buffer: NDArray[Any] | None = None
        self._state: State | None = None
        self.row_shape: RowShape | None = None
        """Shape of a row; None before the first one."""

    def buffer(self, n_frames: int) -> NDArray[Any] | None:
        """Return an array that the kernel may fill with the next rows; None before the first."""
        if self._rows is None:
            return None
        if self._shared is not None and len(self._rows) < n_frames:
            self._rows = np.empty((n_frames, *self._rows.shape[1:]), self._rows.dtype)
        start = self._n_rows if self._shared is None else 0
        self._buffer = self._rows[start : start + n_frames]
        return self._buffer

    def add(self, rows: NDArray[Any]) -> None:
        """Add the next rows.

        Raises BlockError: their shape or type differs from those before, or the reducer failed,
        which is its cause.
        """
        shape = rows.shape[1:]
        if self.row_shape is None:
            self.row_shape = shape
        elif shape != self.row_shape and self._reducer.of_one_shape:
            raise BlockError(f"rows of different shapes, {self.row_shape} and then {shape}")
        if not self._stacks:
            block_rows = np.array(rows) if self._reducer.keeps_rows else rows
            state = call_reducer(self._reducer, "lift", block_rows)
            if self._state is not None:
                state = call_reducer(self._reducer, "merge", self._state, state)
            self._state = state
            return
        if self._rows is None:
            if self._shared is not None and not self._shared.accepts(shape, rows.dtype):
                self._shared = None
            n_rows = self._n_frames if self._shared is None else 0
            self._rows = np.empty((n_rows, *shape), rows.dtype)
        elif rows.dtype != self._rows.dtype:
            try:
                common_dtype = np.result_type(self._rows.dtype, rows.dtype)
            except TypeError:
                raise BlockError(
                    f"rows of different types, {self._rows.dtype} and then {rows.dtype}"
                ) from None
            self._widen(common_dtype)
        stop = self._n_rows + len(rows)
        if self._shared is not None:
            self._shared.write(self._first_row + self._n_rows, rows)
        elif rows is not self._buffer:
            self._rows[self._n_rows : stop] = rows
        self._n_rows = stop

    def _widen(self, dtype: np.dtype[Any]) -> None:
        """Convert the rows to another type; shared rows, which have one type, are read back."""
        assert self._rows is not None
        if self._shared is None:
            self._rows = self._rows.astype(dtype, copy=False)
            return
        first = self._first_row
        self._rows = np.empty((self._n_frames, *self._rows.shape[1:]), dtype)
        self._rows[: self._n_rows] = self._shared.read(first, first + self._n_rows)
        self._shared = None

    @property
    def state(self) -> State | None:
        """The state of all rows; None if they are shared."""
        if self._rows is None:
            return self._state
        return None if self._shared is not None else ([self._rows],)

    @property
    def row_kind(self) -> RowKind | None:
        """Shape and type of the rows; None before the first one."""
        dtype = None if self._rows is None else self._rows.dtype
        return None if self.row_shape is None else (self.row_shape, dtype)


READ_NBYTES = 4 << 20
"""Decoded bytes of whole frames that one read may span: few enough to stay in the CPU's caches
for the kernel, many enough to make the overhead of calls negligible."""

ASK_FOR_FIELDS = (
    "velocities and forces are None unless they are asked for: by a class with the attribute "
    'fields = ("velocities",), for a function with --set fields=velocities (in Python '
    'fields="velocities")'
)
DENSE_STEP = 2
"""Up to this step between frames (or the frames of a chunk, if more), those in between are read and
dropped."""

NumberedBlock = tuple[int, range]
Progress = Callable[[int, int], None]
"""Called with (frames, decoded bytes) done since the last call."""
RowShape = tuple[int, ...]
RowKind = tuple[RowShape, np.dtype[Any] | None]
"""Shape of a row, and its type where rows are stacked."""


def rank_name(rank: int) -> str:
    """Return the name of this process, a rank of an MPI program, in records of timings."""
    return f"rank {rank} ({worker_name()})"


def block_label(item: NumberedBlock) -> str:
    """Return the label of a block, for messages."""
    return f"block {item[0]} ({block_name(item[1])})"


@dataclass(slots=True)
class BlockResult:
    """The result of one block, as a worker sends it."""

    state: State | None
    """State of the rows; None if they are in shared memory."""
    time: NDArray[np.float64]
    timing: BlockTiming
    row_kind: RowKind | None


def check_kinds(
    blocks: Sequence[NumberedBlock],
    row_kinds: Sequence[RowKind | None],
    layout: Layout,
    prepared: Prepared,
) -> None:
    """Raise BlockError if rows of blocks have shapes or types that the reducer cannot join."""
    kinds = [(block, *kind) for block, kind in zip(blocks, row_kinds, strict=True) if kind]
    if not prepared.reducer.of_one_shape or not kinds:
        return
    first_block, first_shape, common_dtype = kinds[0]

    def mismatch(block: NumberedBlock, noun: str, value: Any, first_value: Any) -> BlockError:
        return BlockError(
            f"{layout.path}: {block_label(block)}: {kernel_name(prepared.function)} returned rows "
            f"of {noun} {value}, but in {block_label(first_block)} rows of {noun} {first_value}; "
            f"rows of different {noun}s cannot be joined"
        )

    for block, shape, dtype in kinds:
        if shape != first_shape:
            raise mismatch(block, "shape", shape, first_shape)
        if dtype is None or common_dtype is None:
            continue
        try:
            common_dtype = np.result_type(common_dtype, dtype)
        except TypeError:
            raise mismatch(block, "type", dtype, common_dtype) from None


class BlockWork:
    """Reads and computes one block; opens the trajectory once in each process.

    Memory stays bounded for blocks of any size: a read fills one buffer, which is used again.

    `layout`: the trajectory. `prepared`: the kernel. `open_s`: seconds that opening took, if
    `layout` is open already; counted with the first block. `on_read`: called, in this process, when
    the frames of a read have been computed. `shared`: memory for stacked rows, which blocks then
    need not send, and the frame of each row. `rank`: of this process, under MPI.
    """

    def __init__(
        self,
        layout: Layout,
        prepared: Prepared,
        open_s: float = 0.0,
        on_read: Progress | None = None,
        shared: tuple[SharedRows, range] | None = None,
        rank: int | None = None,
    ) -> None:
        self.rank = rank
        self.layout = layout
        self.prepared = prepared
        self.shared = shared
        self._open_s = open_s
        self._on_read = on_read
        self._boundaries: NDArray[np.int64] | None = None
        self._buffer: FrameBlock | None = None
        self._one_at_a_time = OneAtATime()  # the buffer is for one block

    def __getstate__(self) -> dict[str, Any]:
        """Return the arguments that other processes need."""
        names = ("layout", "prepared", "shared")
        return {name: getattr(self, name) for name in names}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]

    def __call__(self, item: NumberedBlock) -> BlockResult:
        """Compute one block."""
        with self._one_at_a_time:
            return self._analyze(item)

    def _analyze(self, item: NumberedBlock) -> BlockResult:
        number, block = item
        timing = BlockTiming(number, block, rank=self.rank)
        if self.rank is not None:
            timing.worker = rank_name(self.rank)
        block_watch, watch = Stopwatch(), Stopwatch()
        info = self.layout.info
        if self._boundaries is None:
            self._boundaries = self.layout.boundaries()
            timing.t_open_s = watch.lap() + self._open_s
            timing.began_unix_s -= self._open_s  # the trajectory was opened before this block
        max_frames = max(1, READ_NBYTES // max(1, 12 * info.n_atoms * len(self.prepared.fields)))
        loop = Stopwatch()
        shared_rows, all_frames = self.shared or (None, block)
        first_row = all_frames.index(block.start)
        collector = RowCollector(self.prepared.reducer, len(block), shared_rows, first_row)
        times = np.empty(len(block))
        n_done = 0
        runs = list(sub_blocks(self._boundaries, block, max_frames))
        if self._is_dense(block, info.chunk_frames):
            next_reads = ((run[0], run[-1] + 1) for run in runs)
        else:
            next_reads = ((frame, frame + 1) for frame in block)
        self.layout.prefetch(next_reads, self.prepared.atoms)
        slowest_run: range | None = None
        for run in runs:
            raise_received_signal()
            watch.lap()
            source_nbytes, cache_nbytes = reads.nbytes_source, reads.nbytes_cache
            frames = self._read(run, info.chunk_frames)
            read_s = watch.lap()
            timing.t_io_s += read_s
            if read_s > timing.slowest_read_s:
                timing.slowest_read_s, slowest_run = read_s, run
            timing.nbytes_source += reads.nbytes_source - source_nbytes
            timing.nbytes_cache += reads.nbytes_cache - cache_nbytes
            # Before a kernel may change them:
            times[n_done : n_done + len(run)] = frames.time
            if self.prepared.doubt_finder is not None:
                doubtful = self.prepared.doubt_finder.frames(frames)
                timing.doubtful_frames += [run[row] for row in doubtful]
            self._compute(item, frames, run, collector)
            timing.t_comp_s += watch.lap()
            n_done += len(run)
            timing.nbytes_read += frames.nbytes
            if self._on_read is not None:
                self._on_read(len(run), frames.nbytes)
        timing.notes = cache_notes(self.layout)
        if slowest_run is not None:  # if all bytes came from the node's cache, no file is opened
            from_source = timing.nbytes_source or not timing.nbytes_cache
            first, atoms = slowest_run[0], self.prepared.atoms
            ranges = self.layout.byte_ranges(first, first + 1, atoms) if from_source else ()
            paths = (byte_range.file.path for byte_range in ranges)
            timing.slowest_file = str(next(paths, self.layout.path))
        timing.t_end_loop_s = watch.lap()
        timing.t_all_frame_s = loop.lap()
        timing.t_block_s = block_watch.lap()
        if timing.t_open_s:  # opening counts as part of the first block
            timing.t_block_s += self._open_s
        return BlockResult(collector.state, times, timing, collector.row_kind)

    def _compute(
        self, item: NumberedBlock, frames: FrameBlock, run: range, collector: RowCollector
    ) -> None:
        """Compute the rows of one read and collect them."""
        function: Any = self.prepared.function
        out = collector.buffer(len(run)) if self.prepared.fills else None
        label = f"{self.layout.path}: {block_label(item)}"
        suffix = "" if run == item[1] else f" (in {block_name(run)})"
        try:
            rows = function(frames) if out is None else function(frames, out=out)
        except MdioError:
            raise
        except SystemExit as error:
            raise_received_signal()
            raise BlockError(f"{label} failed: it called sys.exit({error.code!r})") from error
        except Exception as error:
            text = error_text(error)
            absent = [name for name in self.prepared.fields if getattr(frames, name) is None]
            is_none_error = "NoneType" in text and "not callable" not in text
            if is_none_error and absent:
                text += f"; the trajectory has no {' and no '.join(absent)}"
            elif is_none_error and self.prepared.fields == FIELDS[:1]:
                text += f"; {ASK_FOR_FIELDS}"
            raise BlockError(f"{label} failed: {text}{suffix}") from error
        row_array = check_rows(rows, run, function, f"{label}{suffix}")
        try:
            collector.add(row_array)
        except BlockError as error:
            if error.__cause__ is not None:  # the reducer failed
                raise BlockError(f"{label}{suffix}: {error}") from error.__cause__
            raise BlockError(
                f"{label}{suffix}: {kernel_name(function)} returned {error}, which cannot be joined"
            ) from None

    @staticmethod
    def _is_dense(run: range, chunk_frames: int | None) -> bool:
        """Return whether frames between those of a run are read, too, and dropped."""
        return run.step <= max(DENSE_STEP, chunk_frames or 1)

    def _read(self, run: range, chunk_frames: int | None) -> FrameBlock:
        first, stop = run[0], run[-1] + 1
        if self._is_dense(run, chunk_frames):
            dense = self.layout.read(
                first, stop, atoms=self.prepared.atoms, out=self._read_buffer(stop - first)
            )
            return dense if run.step == 1 else dense.frames(slice(None, None, run.step))
        out = self._read_buffer(len(run))
        for row, frame in enumerate(run):
            self.layout.read(
                frame, frame + 1, atoms=self.prepared.atoms, out=out.frames(slice(row, row + 1))
            )
        return out

    def _read_buffer(self, n_frames: int) -> FrameBlock:
        """Return the first `n_frames` of the buffer that frames are read into."""
        if self._buffer is None or self._buffer.n_frames < n_frames:
            info, prepared = self.layout.info, self.prepared
            self._buffer = FrameBlock.empty(
                n_frames,
                info.n_atoms if prepared.atoms is None else len(prepared.atoms),
                velocities=info.has_velocities and "velocities" in prepared.fields,
                forces=info.has_forces and "forces" in prepared.fields,
            )
        return self._buffer.frames(slice(0, n_frames))
