"""Base classes for formats of other packages whose files are records, each of one frame.

Such a package finds where records end, and decodes and encodes one record. The rest is done here:
an index of the records, prefetching, caches on nodes, selections, checks of decoded frames, writing
in order by many workers, and resuming.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import BinaryIO, ClassVar

import numpy as np

from mdio.core.errors import MdioError, SourceError, error_text
from mdio.core.files.checks import open_regular
from mdio.core.files.index import FrameIndex
from mdio.core.frames import FIELDS, AtomIndices, FrameBlock, TrajectoryInfo
from mdio.core.kernels import crc32c
from mdio.layouts.base import TIMES_MADE_UP, TIMES_MADE_UP_NOT_STEPS, Layout
from mdio.layouts.foreign.snapshot import Snapshot, fill_row
from mdio.layouts.native.encoder import DECODED_PIECE_NBYTES, Bytes, Encoder
from mdio.layouts.native.file import IndexedLayout
from mdio.layouts.native.writer import AppendingFileWriter
from mdio.layouts.plan import FieldPlan, LayoutPlan, WriteOptions
from mdio.layouts.writer import EncodedChunk

TIME_FIELDS = ("time", "step")


class RecordsLayout(IndexedLayout):
    """A file of records, each of one frame.

    A subclass defines `name`, `facts`, `sniff` and the abstract methods.
    """

    reads_whole_frames = True
    _lacking: Mapping[str, bool] = MappingProxyType({})
    """Whether the first frame has no time, and no step, so that frames are numbered."""

    @staticmethod
    @abstractmethod
    def sizes(file: BinaryIO) -> Iterable[int]:
        """Yield the size in bytes of each record of a file; records follow without gaps.

        Any exception that it raises is reported as damage to the file, which is read up to there.
        If the last one is cut, so that it cannot be decoded, the file is read up to the one before.
        """

    @staticmethod
    @abstractmethod
    def snapshot(record: bytes) -> Snapshot:
        """Return the frame in a record.

        Any exception that it raises is reported as damage to the frame. The caller checks shapes.
        Velocities and forces are read if the first frame has them; in other frames without them
        they are NaN. All frames have a time, or none has; so also a step.
        """

    def _open_frames(self) -> TrajectoryInfo:
        # Not stored beside the file, where it would outlive the code that found the records.
        self._index = self._shared_metadata or self._find_records()
        first = self._snapshot(0)
        self._lacking = {name: getattr(first, name) is None for name in TIME_FIELDS}
        self._has_steps = not self._lacking["step"]
        has_fields = {f"has_{name}": getattr(first, name) is not None for name in FIELDS[1:]}
        info = self._read_properties(**has_fields)
        if first.time is not None:
            return info
        beginning = TIMES_MADE_UP if first.step is None else TIMES_MADE_UP_NOT_STEPS
        text = f"{beginning}, since {self.name} holds none: frames are 1 ps apart"
        return info.replace(flaws=info.flaws._replace(made_up=(text,)))

    def with_metadata(self) -> Layout:
        """Return a layout that pickles with its index, so that no worker scans the file again."""
        return self._copy_with_metadata(self.index)

    def _find_records(self) -> FrameIndex:
        path, ends = self.path, [0]
        with open(open_regular(path), "rb") as file:
            try:
                for nbytes in self.sizes(file):
                    ends.append(ends[-1] + nbytes)
            except MdioError:
                raise
            except Exception as error:  # plug-ins raise anything on bad input
                if len(ends) == 1:
                    raise SourceError(
                        f"{path}: its frames cannot be found ({error_text(error)[:200]}); it is "
                        "damaged, or no file of this format: copy it again"
                    ) from error
        edges, size = np.array(ends, np.int64), self._file.nbytes
        if len(edges) > 2 and edges[-1] > size:  # the last record says that it is longer
            edges = edges[:-1]
        if len(edges) == 1 or (np.diff(edges) <= 0).any() or edges[-1] > size:
            raise SourceError(
                f"{path}: {len(edges) - 1} frames in {edges[-1]} of its {size} bytes, expected one "
                "or more; it is empty or damaged: copy it again"
            )
        self._index = FrameIndex(edges[:-1], int(edges[-1]), 0)
        n_atoms = self._snapshot(0).n_atoms
        if len(edges) > 2:
            try:
                self._snapshot(len(edges) - 2)
            except SourceError:  # cut, as that of a file that is still written
                edges = edges[:-1]
        return FrameIndex(edges[:-1], int(edges[-1]), n_atoms, int(size - edges[-1]))

    def _snapshot(self, frame: int) -> Snapshot:
        """Return a frame whose arrays have the right shapes; raises SourceError."""
        begin, end = self._byte_bounds(frame, frame + 1)
        record = self._file.peek(begin, end - begin)
        try:
            snapshot = self.snapshot(record)
            n_atoms = self._index.n_atoms or len(snapshot.positions)
            shapes = dict.fromkeys(FIELDS, (n_atoms, 3)) | {"box": (6,), "time": (), "step": ()}
            for name, shape in shapes.items():
                if name == FIELDS[0] or getattr(snapshot, name) is not None:
                    dtype = {"time": np.float64, "step": np.int64}.get(name, np.float32)
                    values = np.asarray(getattr(snapshot, name), dtype)
                    if values.shape != shape:
                        raise ValueError(f"{name} of shape {values.shape}, expected {shape}")
                    setattr(snapshot, name, values)
            for name, lacks in self._lacking.items():
                if (getattr(snapshot, name) is None) != lacks:
                    actual, expected = ("a", "none") if lacks else ("no", "one")
                    raise ValueError(f"it has {actual} {name}, but the first frame has {expected}")
        except MdioError:
            raise
        except Exception as error:  # plug-ins raise anything on bad input
            text = error_text(error)[:200]
            raise SourceError(
                f"{self.path}: frame {frame} is damaged ({text}); copy the file again"
            ) from error
        return snapshot

    def _read_into(
        self, start: int, stop: int, atoms: AtomIndices | None, block: FrameBlock
    ) -> None:
        for row, frame in enumerate(range(start, stop)):
            snapshot = self._snapshot(frame)
            block.time[row] = frame if snapshot.time is None else snapshot.time
            fill_row(block, row, snapshot, atoms, frame)


class RecordsWriter(AppendingFileWriter):
    """Writes a file of records, which workers encode.

    A subclass defines `name` and the abstract method.
    """

    name: ClassVar[str]
    fields: ClassVar[tuple[str, ...]] = FIELDS[:1]
    """Per-atom arrays that records hold; others are left out, with a note."""
    atom_nbytes: ClassVar[int] = 12
    """Approximate bytes of an atom in a record, from which disk space is estimated."""

    @staticmethod
    @abstractmethod
    def record(frame: Snapshot) -> bytes:
        """Return the record of a frame."""

    @classmethod
    def plan_for(cls, info: TrajectoryInfo, options: WriteOptions) -> LayoutPlan:  # noqa: ARG003
        """Plan one file; the caller adds notes on `options` that were not followed."""
        piece_frames = max(1, min(DECODED_PIECE_NBYTES // max(1, 12 * info.n_atoms), info.n_frames))
        nbytes = info.n_frames * (100 + cls.atom_nbytes * info.n_atoms)
        fields = tuple(name for name in info.fields if name in cls.fields)
        native = FieldPlan(fields, info.sparse)
        return LayoutPlan(
            cls.name, info.n_frames, info.n_atoms, piece_frames, native=native, nbytes=nbytes
        )

    def _encoder_for(self, plan: LayoutPlan) -> Encoder:
        return _RecordEncoder(plan.n_atoms)

    def encode(self, start: int, block: FrameBlock) -> list[EncodedChunk]:
        data = b"".join(map(self.record, self._snapshots(block)))
        return [EncodedChunk(str(start), data, [crc32c(data)])]

    def _snapshots(self, block: FrameBlock) -> Iterator[Snapshot]:
        present = {name: values for name, values in block.present().items() if name in self.fields}
        for row in range(block.n_frames):
            fields = {name: values[row] for name, values in present.items()}
            box = block.box[row] if block.box[row].any() else None
            time, step = float(block.time[row]), int(block.step[row])
            yield Snapshot(**fields, box=box, time=time, step=step)


class _RecordEncoder(Encoder):
    """States that records may have any size; `RecordsWriter.encode` encodes them."""

    frame_nbytes = None

    def encode(self, block: FrameBlock, out: Bytes | None = None) -> Bytes:
        raise NotImplementedError
