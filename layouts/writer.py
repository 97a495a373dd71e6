"""The contract of a layout that is written.

Writing takes two steps, since many workers share the work while a file may have only one owner:
`LayoutWriter.encode` is pure and runs in the workers, `LayoutWriter.store` runs in the owner (in
every worker, if `WriterFacts.parallel_store`). Owner and workers send each other objects of the
classes here.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mdio.core.errors import OutputError
from mdio.core.frames import AtomIndices, FrameBlock, TrajectoryInfo
from mdio.core.kernels.checks import buffer
from mdio.core.topology import Topology
from mdio.core.words import plural
from mdio.layouts.plan import LayoutPlan, WriteOptions


@dataclass(frozen=True, slots=True)
class NotFinite:
    """Coordinates that are NaN or infinite."""

    coordinates: int
    frames: int
    first_frame: int

    @classmethod
    def count_in(cls, positions: NDArray[np.float32], first: int) -> NotFinite | None:
        """Count non-finite numbers in (F, A, 3); `first` is the number of the first frame."""
        # Minimum and maximum are fast, and one of them is not finite if any number is not.
        low, high = positions.min(initial=0), positions.max(initial=0)
        if np.isfinite(low) and np.isfinite(high):
            return None
        counts = (~np.isfinite(positions)).sum(axis=(1, 2))
        frames = np.flatnonzero(counts)
        return cls(int(counts.sum()), len(frames), first + int(frames[0]))

    def note(self, n_atoms: int) -> str:
        """Return a note for the user on an output of `n_atoms`."""
        if self.coordinates == 3 * n_atoms * self.frames:
            return (
                f"{plural(self.frames, 'frame')} (the first is frame {self.first_frame}) "
                f"{'has' if self.frames == 1 else 'have'} no positions: all coordinates there are "
                "NaN or infinite, as in the source or as atoms of --center or --fit are there"
            )
        return (
            f"positions are kept as they are, and of them {plural(self.coordinates, 'coordinate')} "
            f"in {plural(self.frames, 'frame')} (the first is frame {self.first_frame}) "
            f"{'is' if self.coordinates == 1 else 'are'} NaN or infinite"
        )


def add_not_finite(
    total: NotFinite | None, added: NotFinite | None, first: int = 0
) -> NotFinite | None:
    """Return `total` with `added`, whose frame 0 is frame `first` of `total`."""
    if added is None:
        return total
    first += added.first_frame
    if total is None:
        return replace(added, first_frame=first)
    coordinates, frames = total.coordinates + added.coordinates, total.frames + added.frames
    return NotFinite(coordinates, frames, min(total.first_frame, first))


@dataclass(frozen=True, slots=True)
class OutputMeta:
    """The contents of an output's manifest that its plan does not have."""

    uuid: str
    created: str
    """ISO 8601, UTC."""
    source: Mapping[str, Any]
    """Fingerprint of the source: path, nbytes, mtime_ns, crc32c of head and tail, layout."""
    dt_ps: float
    frames: Sequence[Sequence[int]]
    """The source's frames that are kept, as runs of (start, stop, step)."""
    atoms: AtomIndices | None = None
    """The source's atoms that are kept (``--select``); None = all."""
    groups: Mapping[str, AtomIndices] | None = None
    """Atoms of each stored group, as indices into the atoms that are kept."""
    topology: Topology | None = None
    frame_data: Mapping[str, NDArray[Any]] | None = None
    """Numbers of each frame that is kept."""
    striping: Mapping[str, Any] | None = None
    not_finite: NotFinite | None = None
    repaired: Sequence[Mapping[str, Any]] = ()
    """Records of repairs: time, and units written again."""
    appended_to: str | None = None
    """The uuid of the output that this one replaces by appending to it."""
    recipe: Mapping[str, Any] | None = None
    """Options given by the user, by name, except those that say how the conversion runs."""


@dataclass(frozen=True, slots=True)
class EncodedChunk:
    """Encoded bytes (a chunk, a shard, frames of a segment) and where in the output they belong."""

    key: str
    """Where they belong; each writer makes and understands its own keys."""
    data: bytes | bytearray | memoryview | NDArray[Any] | list[NDArray[np.uint8]]
    """The bytes to store: any C-contiguous buffer, or several that follow each other (where workers
    store what they encode, so that it is never sent)."""
    crcs: Sequence[int]
    """crc32c of each decoded chunk in it, as little-endian bytes; then further ones of a writer."""
    file: Path | None = None
    """A file that holds these bytes already and will not change."""

    @property
    def parts(self) -> list[memoryview]:
        """The buffers of `data` as flat bytes, in order."""
        parts = self.data if isinstance(self.data, list) else [self.data]
        return [buffer(part) for part in parts]

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in self.parts)


@dataclass(frozen=True, slots=True)
class PieceRecord:
    """The record of a stored piece, for the owner of the output and its journal."""

    start: int
    stop: int
    crcs: Mapping[str, Sequence[int]]
    """`EncodedChunk.crcs` of each key."""
    nbytes: int
    box: NDArray[np.float32]
    time: NDArray[np.float64]
    step: NDArray[np.int64]
    not_finite: NotFinite | None = None
    extra: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    """Further arrays of this writer's own, which a journal can hold."""


CHUNK_OPTIONS = frozenset({"pattern", "chunk_frames", "chunk_atoms"})
"""Options of conversions into layouts with chunks."""


class WriterFacts(NamedTuple):
    """The abilities of a writer; each writer refines those that depend on the plan."""

    own_options: frozenset[str] = frozenset()
    """Options of conversions that apply to this layout, but not to every layout
    (``chunk_frames``, ``segments``, ...)."""
    copier: str | None = None
    """Address (``module:Class``) of the writer that copies frames as bytes, if there is one."""
    ensemble: str | None = None
    """Address of the class that makes one output of several, if there is one."""
    mpi_writer: str | None = None
    """Address of the writer whose file all ranks write (parallel HDF5), if there is one."""
    resumes: bool = False
    """Whether another run can resume from stored pieces, through `LayoutWriter.find`."""
    refers_to_source: bool = False
    """Whether an output refers to frames in the source rather than hold them."""
    writes_files_once: bool = False
    """Whether the files of a written piece never change, so that they can be sent."""
    parallel_store: bool = False
    """Whether all workers may call `LayoutWriter.store` at the same time, each with its own
    keys."""
    packs_integers: bool = False
    """Whether integers of an XTC stay integers unless floats are asked for."""
    batch_frames: int | None = None
    """Best number of frames to give `LayoutWriter.encode` at a time; None = a whole piece."""


SelectIntact = Callable[
    [Sequence[PieceRecord], Callable[[PieceRecord], bool]], Sequence[PieceRecord]
]
"""Takes records and a function that compares a piece with its checksums; returns the records of
intact pieces."""


class LayoutWriter(ABC):
    """Writes one output at a temporary path; `publish` gives it its name in the end.

    A writer is made once, by the owner, and pickled to the workers after `create`. The owner calls
    `create`. Then, for each write task of the plan in any order, a worker encodes a piece, its
    chunks are stored, and the owner calls `commit` with its record. Last comes `finish`. Where an
    earlier run stored some of the pieces, the owner calls `find` in place of `create`, journals the
    records that it returns, calls `finish_moving`, commits them, and has the others written.

    `path`: a file or a folder that does not exist yet. `meta`: for the manifest.
    """

    facts: WriterFacts = WriterFacts()
    """Abilities of the class; an instance may refine them."""

    def __init__(self, path: Path, plan: LayoutPlan, meta: OutputMeta) -> None:
        self.path = path
        self.plan = plan
        self.meta = meta
        self.notes: list[str] = list(plan.notes)
        """Notes for the user: those of the plan, and those that writing adds."""

    @classmethod
    @abstractmethod
    def plan_for(cls, info: TrajectoryInfo, options: WriteOptions) -> LayoutPlan:
        """Plan an output of the frames and atoms of `info`. Pure.

        Raises PlanError: options that this layout does not have, or that do not fit.
        """

    @abstractmethod
    def create(self) -> None:
        """Make the files or folders (owner, once).

        Whatever else workers need is kept in plain, picklable attributes.
        """

    def find(
        self, records: Sequence[PieceRecord], select_intact: SelectIntact
    ) -> Sequence[PieceRecord]:
        """Resume from pieces that earlier runs have stored, in place of `create`.

        `records`: of these pieces. Returns the records of intact pieces, new ones for pieces that
        had to be moved. Raises CorruptLayoutError: one of these has changed since it was stored.
        """
        raise NotImplementedError

    def finish_moving(self) -> None:
        """Remove the files from which `find` moved pieces, once the journal has these (owner)."""

    @abstractmethod
    def encode(self, start: int, block: FrameBlock) -> list[EncodedChunk]:
        """Encode a piece, or a batch of its frames, that begins at frame `start`. Pure."""

    @abstractmethod
    def store(self, item: EncodedChunk) -> None:
        """Write encoded bytes where they belong."""

    def drain(self) -> None:
        """Wait until everything given to `store` is written to its files; raises OutputError."""

    @abstractmethod
    def commit(self, record: PieceRecord) -> None:
        """Keep the checksums, boxes, times and steps of a stored piece (owner)."""

    def written_pieces(self, record: PieceRecord) -> Iterable[tuple[PieceRecord, Sequence[Path]]]:
        """Yield the records of pieces, this one or earlier ones, that are now written completely.

        Each comes with its files: once they are flushed, the piece is on the disk.
        """
        return [(record, [self.path])]

    @abstractmethod
    def finish(self) -> None:
        """Check that every piece was stored, write the rest and last the manifest (owner)."""

    def _check_complete(self, stored: Container[int]) -> None:
        """Raise OutputError unless all pieces were stored; `stored`: their first frames."""
        tasks = self.plan.write_tasks()
        missing = [task for task in tasks if task[0] not in stored]
        if missing:
            raise OutputError(
                f"{self.path}: {len(missing)} of {len(tasks)} pieces were never stored, the first "
                f"being frames {missing[0][0]} to {missing[0][1] - 1}; convert again"
            )

    def abort(self) -> None:
        """Close handles after an error; the caller removes the files (owner)."""

    def __getstate__(self) -> dict[str, Any]:
        """Leave out handles (attributes that begin with ``_handle``), and make the path absolute.

        Workers may have another working folder.
        """
        state = {k: v for k, v in self.__dict__.items() if not k.startswith("_handle")}
        # Only the owner writes the topology.
        return state | {"meta": replace(self.meta, topology=None), "path": self.path.absolute()}
