"""The contract of a layout that is written.

Writing is two steps, since the work is done by many workers while a file may have one owner only:
`LayoutWriter.encode` is pure and runs in the workers, `LayoutWriter.store` runs where the key is
owned (everywhere, if `WriterFacts.parallel_store`).

What passes between the owner of an output and the workers that fill it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

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
    """In how many frames they are."""
    first_frame: int

    @classmethod
    def among(cls, positions: NDArray[np.float32], first: int) -> NotFinite | None:
        """Count non-finite numbers in (F, N, 3); `first` is the number of the first frame."""
        # Two passes over what is in the processor's cache: NaN goes through both, infinity is one
        # end.
        low, high = positions.min(initial=0), positions.max(initial=0)
        if np.isfinite(low) and np.isfinite(high):
            return None
        counts = (~np.isfinite(positions)).sum(axis=(1, 2))
        frames = np.flatnonzero(counts)
        return cls(int(counts.sum()), len(frames), first + int(frames[0]))

    def __str__(self) -> str:
        return (
            f"positions are kept as they are, and of them {plural(self.coordinates, 'coordinate')} "
            f"in {plural(self.frames, 'frame')} (the first is frame {self.first_frame}) "
            f"{'is' if self.coordinates == 1 else 'are'} NaN or infinite"
        )

    def __add__(self, other: NotFinite) -> NotFinite:
        first = min(self.first_frame, other.first_frame)
        return NotFinite(self.coordinates + other.coordinates, self.frames + other.frames, first)


def sum_of(one: NotFinite | None, other: NotFinite | None, first: int = 0) -> NotFinite | None:
    """Return `one`, and `other` of frames that are counted from frame `first` of it."""
    if other is None:
        return one
    other = replace(other, first_frame=other.first_frame + first)
    return other if one is None else one + other


@dataclass(frozen=True, slots=True)
class OutputMeta:
    """The facts that an output records besides its frames; they become its manifest."""

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
    """Topology of the atoms that are kept."""
    frame_data: Mapping[str, NDArray[Any]] | None = None
    """Numbers of each frame that is kept; see `Layout.frame_data`."""
    striping: Mapping[str, Any] | None = None
    """Stripes as requested and as applied."""
    not_finite: NotFinite | None = None
    """Positions that are not finite; None = none."""
    repaired: Sequence[Mapping[str, Any]] = ()
    """When it was repaired, and what was written again."""
    appended_to: str | None = None
    """The uuid of the output whose place this one takes, with all or most of its frames."""
    recipe: Mapping[str, Any] | None = None
    """Options given by the user, by name, except those of how the conversion runs."""


@dataclass(frozen=True, slots=True)
class EncodedChunk:
    """One encoded piece of output and where it belongs."""

    key: str
    """Where; each writer makes and understands its own keys."""
    data: bytes | bytearray | memoryview | NDArray[Any] | list[NDArray[np.uint8]]
    """The bytes as they lie on disk: any C-contiguous buffer, or several that follow each other
    (where every worker stores for itself: nothing then needs to be in one piece)."""
    crcs: Sequence[int]
    """crc32c of the decoded little-endian bytes of each chunk in it, in order of chunk."""
    file: Path | None = None
    """A file that holds these bytes already and is never written again."""

    @property
    def parts(self) -> list[memoryview]:
        """The bytes in their order, flat; one part where they are in one piece."""
        parts = self.data if isinstance(self.data, list) else [self.data]
        return [buffer(part) for part in parts]

    @property
    def nbytes(self) -> int:
        """Bytes on disk."""
        return sum(part.nbytes for part in self.parts)


@dataclass(frozen=True, slots=True)
class PieceRecord:
    """The facts of a stored piece that the owner of the output needs."""

    start: int
    stop: int
    crcs: Mapping[str, Sequence[int]]
    """`EncodedChunk.crcs` of each key."""
    nbytes: int
    """Bytes that were stored."""
    box: NDArray[np.float32]
    time: NDArray[np.float64]
    step: NDArray[np.int64]
    not_finite: NotFinite | None = None
    extra: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    """Further numbers for the writer, which a journal can hold."""


CHUNK_OPTIONS = frozenset({"pattern", "chunk_frames", "chunk_atoms"})
"""Options of conversions that layouts in chunks have."""


class WriterFacts(NamedTuple):
    """The abilities of a writer; each writer refines those that depend on the plan."""

    own_options: frozenset[str] = frozenset()
    """Options of conversions that this layout has, of those that not every layout has
    (``chunk_frames``, ``segments``, ...)."""
    copier: str | None = None
    """Address (``module:Class``) of the writer that copies frames as bytes, if there is one."""
    ensemble: str | None = None
    """Address of the class that makes one output of several, if there is one."""
    through_mpi: str | None = None
    """Address of the writer whose file all ranks write (parallel HDF5), if there is one."""
    resumes: bool = False
    """Whether another run can resume from stored pieces, through `LayoutWriter.find`."""
    points: bool = False
    """Whether an output points into the source rather than hold its frames."""
    writes_files_once: bool = False
    """Whether the files of a settled piece are not written again, so that they can be sent on."""
    parallel_store: bool = False
    """Whether `LayoutWriter.store` may be called by every worker at once, each with its own
    keys."""
    packs_integers: bool = False
    """Whether integers of an XTC stay integers unless floats are asked for."""
    batch_frames: int | None = None
    """Frames of a piece that `LayoutWriter.encode` had best be given at a time; None: all."""


SelectIntact = Callable[
    [Sequence[PieceRecord], Callable[[PieceRecord], bool]], Sequence[PieceRecord]
]
"""Takes receipts and a function that compares a piece with its checksums; returns the receipts of
intact pieces."""


class LayoutWriter(ABC):
    """Writes one output at a temporary path; `publish` gives it its name in the end.

    A writer is made once, by the owner, and pickled to the workers after `create`. The owner calls
    `create`, then for every write task of the plan, in any order, what a worker has encoded is
    stored and `commit` is called with its record, and then `finish`. Where an earlier run stored
    some of the pieces, `find` is called in place of `create`, `commit` with what it returns, and
    the others follow.

    Parameters
    ----------
    path
        Temporary path: a file or a folder that does not exist yet.
    plan
        What to write.
    meta
        For the manifest.
    """

    facts: WriterFacts = WriterFacts()
    """Facts of the class; a writer may refine them."""

    def __init__(self, path: Path, plan: LayoutPlan, meta: OutputMeta) -> None:
        self.path = path
        self.plan = plan
        self.meta = meta
        self.notes: list[str] = list(plan.notes)
        """Notes for the user in the end: those of the plan, and those of writing."""

    @classmethod
    @abstractmethod
    def plan_for(cls, info: TrajectoryInfo, options: WriteOptions) -> LayoutPlan:
        """Plan an output of the frames and atoms of `info`. Pure.

        Raises
        ------
        PlanError
            Options that this layout does not have or that do not fit the trajectory.
        """

    @abstractmethod
    def create(self) -> None:
        """Make the files or folders (owner, once).

        What workers need besides path, plan and meta is kept in plain, picklable attributes.
        """

    def find(self, receipts: Sequence[PieceRecord], believe: SelectIntact) -> Sequence[PieceRecord]:
        """Resume from what former runs have stored, in place of `create`.

        Parameters
        ----------
        receipts
            Those of the pieces that former runs have stored.
        believe
            Returns the receipts whose pieces are intact, of those that are given; it calls its
            second argument on pieces that have to be compared with their checksums.

        Returns
        -------
        sequence of PieceRecord
            Those of the intact pieces; new ones for pieces that had to be moved.

        Raises
        ------
        CorruptLayoutError
            A piece that is to be stored in another place is not as it was stored.
        """
        raise NotImplementedError

    @abstractmethod
    def encode(self, start: int, block: FrameBlock) -> list[EncodedChunk]:
        """Turn one piece, or a batch of one, from frame `start` on, into bytes. Pure."""

    @abstractmethod
    def store(self, item: EncodedChunk) -> None:
        """Write one encoded item where it belongs."""

    def drain(self) -> None:
        """Return once all that was given to `store` is in its files; raises OutputError."""

    @abstractmethod
    def commit(self, record: PieceRecord) -> None:
        """Take note of a stored piece: its checksums, boxes, times and steps (owner)."""

    def settled(self, receipt: PieceRecord) -> Iterable[tuple[PieceRecord, Sequence[Path]]]:
        """Yield the receipts, of a committed piece and earlier ones, whose bytes are in files.

        Each with these files: it is on the disk when they are flushed.
        """
        return [(receipt, [self.path])]

    @abstractmethod
    def finish(self) -> None:
        """Check that every piece came, write the manifest last, flush to disk, close (owner)."""

    def abort(self) -> None:
        """Close handles after an error; the caller removes the files (owner)."""

    def __getstate__(self) -> dict[str, Any]:
        """Leave handles behind: attributes that begin with ``_handle`` do not travel.

        Others may work in another folder, and know the output by its whole name.
        """
        state = {k: v for k, v in self.__dict__.items() if not k.startswith("_handle")}
        # The topology is for the owner to write.
        return state | {"meta": replace(self.meta, topology=None), "path": self.path.absolute()}
