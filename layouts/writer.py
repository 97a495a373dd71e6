"""The contract of a layout that is written.

Writing is two steps, since the work is done by many workers while a file may have one owner only:
`LayoutWriter.encode` is pure and runs in the workers, `LayoutWriter.store` runs where the key is
owned (everywhere, if `LayoutWriter.parallel_store`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from mdio.core.frames import FrameBlock, TrajectoryInfo
from mdio.layouts.output import EncodedChunk, OutputMeta, PieceRecord
from mdio.layouts.plan import LayoutPlan, WriteOptions

__all__ = ["CHUNK_OPTIONS", "EncodedChunk", "LayoutWriter", "OutputMeta", "PieceRecord"]

CHUNK_OPTIONS = frozenset({"pattern", "chunk_frames", "chunk_atoms"})
"""Options of conversions that layouts in chunks have."""


class LayoutWriter(ABC):
    """Writes one output at a temporary path; `publish` gives it its name in the end.

    A writer is made once, by the owner, and pickled to the workers after `create`. The owner calls
    `create`, then for every write task of the plan, in any order, what a worker has encoded is
    stored and `commit` is called with its record, and then `finish`. Where an earlier run stored
    some of the pieces, `reopen` is called in place of `create`, `commit` with their receipts, and
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

    own_options: ClassVar[frozenset[str]] = frozenset()
    """Options of conversions that this layout has, of those that not every layout has
    (``chunk_frames``, ``segments``, ...)."""
    copier: ClassVar[str | None] = None
    """Where the writer is that copies frames as bytes (``module:Class``), if there is one."""
    ensemble: ClassVar[str | None] = None
    """Where the class is that makes one output of several, if there is one."""
    in_parts: ClassVar[str | None] = None
    """Where the writer is that makes a file for each process, if there is one."""
    through_mpi: ClassVar[str | None] = None
    """Where the writer is whose file ranks write together (parallel HDF5), if there is one."""
    resumes: ClassVar[bool] = False
    """Whether another run can go on with what is stored; then `files` and `holds` are there."""

    points: ClassVar[bool] = False
    """Whether an output points into the source rather than hold its frames."""
    lags: bool = False
    """Whether what was stored may be on its way still as the next piece is read: only where its
    owner does all the work, and waits (`drain`) before he relies on it."""
    writes_files_once: ClassVar[bool] = False
    """Whether the `files` of a stored piece are not written again, so that they can be sent on."""

    def __init__(self, path: Path, plan: LayoutPlan, meta: OutputMeta) -> None:
        self.path = path
        self.plan = plan
        self.meta = meta
        self.notes: list[str] = list(plan.notes)
        """What the user is told in the end: what the plan says, and what writing found out."""
        self.done: frozenset[int] = frozenset()
        """First frames of the pieces that former runs have stored."""

    @classmethod
    @abstractmethod
    def plan_for(cls, info: TrajectoryInfo, options: WriteOptions) -> LayoutPlan:
        """Plan an output of the frames and atoms of `info`. Pure.

        Raises
        ------
        PlanError
            Options that this layout does not have or that do not fit the trajectory.
        """

    def write_tasks(self) -> list[tuple[int, int]]:
        """Return the (start, stop) frames of each piece that one worker writes, in order."""
        return self.plan.write_tasks()

    @property
    def parallel_store(self) -> bool:
        """Whether `store` may be called by every worker at once, each with its own keys."""
        return False

    @property
    def batch_frames(self) -> int | None:
        """Frames of a piece that `encode` had best be given at a time; None: all of them."""
        return None

    @abstractmethod
    def create(self) -> None:
        """Make the files or folders (owner, once).

        What workers need besides path, plan and meta is kept in plain, picklable attributes.
        """

    def reopen(self, receipts: Sequence[PieceRecord]) -> Sequence[PieceRecord]:
        """Take up what former runs have made, in place of `create`.

        Returns
        -------
        sequence of PieceRecord
            Those of `receipts`, of the pieces they stored, that can be gone on with.
        """
        self.create()
        return receipts

    def store_again(self, receipts: Sequence[PieceRecord]) -> Sequence[PieceRecord]:  # noqa: ARG002
        """Store pieces of former runs, in new places, where they cannot stay; return new receipts.

        Raises
        ------
        CorruptLayoutError
            One is not as it was stored.
        """
        return ()

    def files(self, receipt: PieceRecord) -> Iterable[Path]:  # noqa: ARG002
        """Return the files that hold a piece: it is on the disk when they are flushed."""
        return [self.path]

    def holds(self, receipt: PieceRecord) -> bool:
        """Return whether a piece is there, by the checksums of what was stored of it."""
        raise NotImplementedError

    def settled(self, receipt: PieceRecord) -> Iterable[PieceRecord]:
        """Return the receipts, of a committed piece and earlier ones, whose bytes are in files."""
        return [receipt]

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
        state["lags"] = False
        return state | {"meta": replace(self.meta, topology=None), "path": self.path.absolute()}
