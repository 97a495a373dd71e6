"""Writers of one native file: XTC, TRR, DCD, AMBER NetCDF.

Frames of TRR, DCD and NetCDF have one size, so every worker writes its own pieces where they
belong. XTC frames do not: the owner appends pieces in order. Pieces that come before their turn
wait in memory, up to `WAITING_NBYTES`, and beyond that in an unnamed file beside the output.
"""

from __future__ import annotations

import os
import tempfile
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import accumulate, takewhile
from pathlib import Path
from typing import IO, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from mdio.core.files.publish import output_errors
from mdio.core.files.writing import WrittenFile, copy_bytes, write_all
from mdio.core.frames import FrameBlock, TrajectoryInfo
from mdio.core.kernels import crc32c
from mdio.core.words import plural
from mdio.layouts.native.encoder import (
    Bytes,
    Encoder,
    encode_frames,
    encoder_of,
    is_stored,
    native_plan,
)
from mdio.layouts.native.netcdf.layout import NCDFEncoder
from mdio.layouts.plan import LayoutPlan, WriteOptions
from mdio.layouts.writer import (
    EncodedChunk,
    LayoutWriter,
    OutputMeta,
    PieceRecord,
    SelectIntact,
    WriterFacts,
)

WAITING_NBYTES = 64 << 20


class FileWriter(LayoutWriter):
    """The base of the writers; pieces of frames of one size are written where they belong."""

    container: ClassVar[str]
    facts = WriterFacts(resumes=True)
    _handle_file: WrittenFile | None = None

    def __init__(self, path: Path, plan: LayoutPlan, meta: OutputMeta) -> None:
        super().__init__(path, plan, meta)
        self._encoder = self._encoder_for(plan)
        # Where frames have one size, every worker writes its own pieces.
        self.facts = self.facts._replace(
            parallel_store=self._encoder.frame_nbytes is not None,
            batch_frames=self._encoder.batch_frames,
        )
        self._columns: dict[int, tuple[NDArray[np.float64], NDArray[np.int64]]] = {}
        """Times and steps of stored pieces, by their first frame."""
        self._n_partly_periodic_boxes = 0
        """Frames whose box has no length along some axes."""

    def _encoder_for(self, plan: LayoutPlan) -> Encoder:
        return encoder_of(self.container, plan)

    @classmethod
    def plan_for(cls, info: TrajectoryInfo, options: WriteOptions) -> LayoutPlan:
        return native_plan(cls.container, info, options)

    @property
    def _file(self) -> WrittenFile:
        """The output, opened for writing once in each process."""
        if self._handle_file is None:
            self._handle_file = WrittenFile(
                self.path, os.O_RDWR, direct=self.plan.writing.direct or False
            )
        return self._handle_file

    def find(
        self, records: Sequence[PieceRecord], select_intact: SelectIntact
    ) -> Sequence[PieceRecord]:
        return select_intact(records, self._is_intact)

    def _is_intact(self, record: PieceRecord) -> bool:
        return is_stored(record, self._encoder.frame_nbytes, self.path, self._offset(record.start))

    def _offset(self, start: int) -> int:
        assert self._encoder.frame_nbytes is not None
        return self._encoder.header_nbytes + start * self._encoder.frame_nbytes

    def create(self) -> None:
        with output_errors(self.path):
            # ``lfs setstripe`` leaves an empty file, whose stripes are to be kept.
            striped = self.path.exists() and self.path.stat().st_size == 0
            self.path.touch(exist_ok=striped)

    def encode(self, start: int, block: FrameBlock) -> list[EncodedChunk]:
        data = self._encoded(start, block)
        return [EncodedChunk(str(start), data, [crc32c(data)])]

    def _encoded(self, start: int, block: FrameBlock) -> Bytes:  # noqa: ARG002
        return encode_frames(self._encoder, block)

    def store(self, item: EncodedChunk) -> None:
        with output_errors(self.path):
            self._file.write(self._offset(int(item.key)), *item.parts)

    def drain(self) -> None:
        if self._handle_file is not None:
            with output_errors(self.path):
                self._handle_file.drain()

    def commit(self, record: PieceRecord) -> None:
        self._columns[record.start] = (record.time, record.step)
        is_open = record.box[:, :3] == 0
        self._n_partly_periodic_boxes += int((is_open.any(axis=1) & ~is_open.all(axis=1)).sum())

    def finish(self) -> None:
        self._check_complete(self._columns)
        columns = [self._columns[start] for start in sorted(self._columns)]
        time, step = (np.concatenate(column) for column in zip(*columns, strict=True))
        with output_errors(self.path):
            self._file.write(0, self._encoder.header(time, step))
            os.fsync(self._file.fileno())
        self.notes += self._encoder.notes(time, step)
        if self._n_partly_periodic_boxes and not self._encoder.keeps_partly_periodic_boxes:
            self.notes.append(
                f"{self.container} cannot hold boxes that have no length along some axes: "
                f"{plural(self._n_partly_periodic_boxes, 'frame')} with such a box have none; dcd, "
                "ncdf, h5md and zarr hold them"
            )
        self.abort()

    def abort(self) -> None:
        if self._handle_file is not None:
            with suppress(OSError):  # what was written is flushed, or about to be removed
                self._handle_file.close()
            self._handle_file = None

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without the attributes that only the owner needs."""
        return {**super().__getstate__(), "_columns": {}}


class DCDFileWriter(FileWriter):
    """One DCD file, CHARMM flavour with unit cells.

    DCD holds positions and cells only, and one time step for all frames: times that are not equally
    spaced become so (`notes` says how).
    """

    container = "dcd"


class NCDFFileWriter(FileWriter):
    """One AMBER NetCDF file (convention 1.0, 64-bit offsets), with what replicas exchanged."""

    container = "ncdf"
    _encoder: NCDFEncoder

    def __init__(self, path: Path, plan: LayoutPlan, meta: OutputMeta) -> None:
        super().__init__(path, plan, meta)
        self._encoder = self._encoder.with_columns(meta.frame_data or {})

    def _encoded(self, start: int, block: FrameBlock) -> Bytes:
        data = super()._encoded(start, block)
        self._encoder.fill(data, start, self.meta.frame_data or {})
        return data


class AppendingFileWriter(FileWriter):
    """Frames of any size: their owner appends them, unless they have one size."""

    _handle_spool: IO[bytes] | None = None

    def __init__(self, path: Path, plan: LayoutPlan, meta: OutputMeta) -> None:
        super().__init__(path, plan, meta)
        self._starts_to_append = deque(start for start, _ in plan.write_tasks())
        """First frames of the pieces that are not appended yet, in order."""
        self._nbytes = 0
        self._waiting: dict[int, memoryview] = {}
        self._spooled: dict[int, tuple[int, int]] = {}
        self._offsets: dict[int, int] = {}
        """Offsets at which pieces were appended, by their first frame."""
        self._unappended: list[PieceRecord] = []

    def find(
        self, records: Sequence[PieceRecord], select_intact: SelectIntact
    ) -> Sequence[PieceRecord]:
        """Keep the pieces that follow each other from the first one on."""
        if self.facts.parallel_store:
            return super().find(records, select_intact)
        return self._leading_pieces(select_intact(self._leading_pieces(records), self._is_intact))

    def _leading_pieces(self, records: Sequence[PieceRecord]) -> Sequence[PieceRecord]:
        """Return the pieces that follow each other from the first on, and note their offsets."""
        record_by_start = {record.start: record for record in records}
        starts = [start for start, _ in self.plan.write_tasks()]
        leading = [
            record_by_start[start] for start in takewhile(record_by_start.__contains__, starts)
        ]
        self._starts_to_append = deque(starts[len(leading) :])
        ends = list(accumulate((record.nbytes for record in leading), initial=0))
        self._offsets = {record.start: begin for record, begin in zip(leading, ends, strict=False)}
        self._nbytes = ends[-1]
        return leading

    def _offset(self, start: int) -> int:
        return super()._offset(start) if self.facts.parallel_store else self._offsets[start]

    def written_pieces(self, record: PieceRecord) -> Iterable[tuple[PieceRecord, Sequence[Path]]]:
        if self.facts.parallel_store:
            return super().written_pieces(record)
        self._unappended.append(record)
        appended = [piece for piece in self._unappended if piece.start in self._offsets]
        self._unappended = [piece for piece in self._unappended if piece.start not in self._offsets]
        return [(piece, [self.path]) for piece in sorted(appended, key=lambda piece: piece.start)]

    def store(self, item: EncodedChunk) -> None:
        """Append a piece, or keep it until those before it are appended."""
        if self.facts.parallel_store:
            super().store(item)
            return
        self._waiting[int(item.key)] = item.parts[0]
        with output_errors(self.path):
            while self._starts_to_append and self._append(self._starts_to_append[0]):
                self._starts_to_append.popleft()
            if sum(data.nbytes for data in self._waiting.values()) > WAITING_NBYTES:
                self._spool()

    def _append(self, start: int) -> bool:
        """Append the piece that begins at frame `start`; return False if it is not here yet."""
        if start in self._waiting:
            data = self._waiting.pop(start)
            self._file.write(self._nbytes, data)
            nbytes = data.nbytes
        elif start in self._spooled and self._handle_spool is not None:
            offset, nbytes = self._spooled.pop(start)
            copy_bytes(
                self._handle_spool.fileno(), offset, nbytes, self._file.fileno(), self._nbytes
            )
        else:
            return False
        self._offsets[start] = self._nbytes
        self._nbytes += nbytes
        return True

    def _spool(self) -> None:
        """Move the pieces that wait to a file without a name, which vanishes with its handle."""
        if self._handle_spool is None:
            self._handle_spool = tempfile.TemporaryFile(dir=self.path.parent, buffering=0)  # noqa: SIM115
        fd = self._handle_spool.fileno()
        for start, data in self._waiting.items():
            offset = os.fstat(fd).st_size
            write_all(fd, offset, data)
            self._spooled[start] = (offset, data.nbytes)
        self._waiting.clear()

    def abort(self) -> None:
        super().abort()
        if self._handle_spool is not None:
            self._handle_spool.close()
            self._handle_spool = None

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without waiting pieces, too: only the owner stores them."""
        return {**super().__getstate__(), "_waiting": {}, "_spooled": {}}


class XTCFileWriter(AppendingFileWriter):
    """One GROMACS XTC file."""

    container = "xtc"


class TRRFileWriter(AppendingFileWriter):
    """One GROMACS TRR file, the same to the byte as MDAnalysis' writer makes it.

    Frames that lack a field are shorter than the others.
    """

    container = "trr"
