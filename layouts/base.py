"""The contract of a layout: reading (`Layout`) and writing (`LayoutWriter`).

Reading is random access to runs of frames. Writing is two steps, since the work is done by many
workers while a file may have one owner only: `LayoutWriter.encode` is pure and runs in the workers,
`LayoutWriter.store` runs where the key is owned (everywhere, if `LayoutWriter.parallel_store`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mdio.core.errors import FrameRangeError
from mdio.core.frames import FIELDS, FrameBlock, TrajectoryInfo
from mdio.layouts.output import OutputMeta, Receipt, Stored
from mdio.layouts.plan import LayoutPlan, WriteOptions

__all__ = ["Layout", "LayoutWriter", "OutputMeta", "Receipt", "Stored", "boundaries_of"]

AtomIndices = NDArray[np.int64]
CHECK_NBYTES = 16 << 20
"""Decoded bytes that `Layout.check` reads at a time where a layout has no chunks of its own."""


def boundaries_of(info: TrajectoryInfo) -> NDArray[np.int64]:
    """Return where chunks begin, or frames where there are no chunks, and ``n_frames``."""
    edges = np.arange(0, info.n_frames, info.chunk_frames or 1, dtype=np.int64)
    return np.append(edges, info.n_frames)


class Layout(ABC):
    """A trajectory on disk, opened for reading on first use.

    A layout pickles as (path, options) and reopens in the process that unpickles it: no handle
    crosses a process. Subclasses implement `_open`, `_read_into`, `_close` and `sniff`.

    Parameters
    ----------
    path
        File or folder.
    fields
        Which per-atom arrays to read of those that are there; all by default.
    **options
        What the subclass documents (``group=`` for layouts with stored groups).
    """

    name: ClassVar[str]
    suffixes: ClassVar[tuple[str, ...]] = ()

    def __init__(
        self, path: str | PathLike[str], *, fields: Sequence[str] = FIELDS, **options: Any
    ) -> None:
        self.path = Path(path)
        self.fields = tuple(fields)
        self.options = options
        self._info: TrajectoryInfo | None = None

    @classmethod
    @abstractmethod
    def sniff(cls, path: Path) -> bool:
        """Return whether the bytes at `path` look like this layout (a cheap look, no parse)."""

    @abstractmethod
    def _open(self) -> TrajectoryInfo:
        """Open what has to stay open, and say what is there.

        Raises SourceError (native files) or CorruptLayoutError (outputs of mdio).
        """

    @abstractmethod
    def _read_into(
        self, start: int, stop: int, atoms: AtomIndices | None, block: FrameBlock
    ) -> None:
        """Fill every array of `block` with frames ``start:stop`` of `atoms` (None = all).

        `start < stop` and the shapes have been checked. `atoms` may be empty: then only box, time
        and step are wanted, and no coordinates should be read or decoded. `block.box` and the
        others may hold old values: all are to be written.
        """

    def _close(self) -> None:
        """Let go of handles; called only after `_open`, and reading may open again."""

    @property
    def info(self) -> TrajectoryInfo:
        """What is in the trajectory; opens it if need be."""
        if self._info is None:
            self._info = self._open()
        return self._info

    def boundaries(self) -> NDArray[np.int64]:
        """Return the frames at which the layout's own pieces begin, ascending, ``n_frames`` last.

        Blocks that begin and end at these read no chunk, shard or segment twice.
        """
        return boundaries_of(self.info)

    def read(
        self,
        start: int,
        stop: int,
        atoms: ArrayLike | None = None,
        out: FrameBlock | None = None,
    ) -> FrameBlock:
        """Read a run of frames.

        Parameters
        ----------
        start, stop
            First frame, and one beyond the last; ``0 <= start <= stop <= n_frames``.
        atoms
            Indices of the wanted atoms, in the wanted order; all by default. An empty selection
            gives box, time and step alone, without decoding coordinates.
        out
            A block of the right shape to fill, which is then returned: spares the allocation.
            Velocities and forces are read only if it has them.

        Returns
        -------
        FrameBlock
            ``stop - start`` frames.

        Raises
        ------
        FrameRangeError
            Frames or atoms outside the trajectory.
        SourceError, CorruptLayoutError
            The bytes on disk are not what they should be.
        """
        info = self.info
        if not 0 <= start <= stop <= info.n_frames:
            raise FrameRangeError(
                f"{self.path}: frames {start}:{stop} asked for, but it has {info.n_frames} frames; "
                f"give 0 <= start <= stop <= {info.n_frames}"
            )
        indices = None if atoms is None else self._atom_indices(atoms, info.n_atoms)
        n_atoms = info.n_atoms if indices is None else indices.size
        if out is None:
            out = FrameBlock.empty(
                stop - start,
                n_atoms,
                velocities=info.has_velocities and "velocities" in self.fields,
                forces=info.has_forces and "forces" in self.fields,
            )
        elif (out.n_frames, out.n_atoms) != (stop - start, n_atoms):
            raise ValueError(
                f"out holds {out.n_frames} frames of {out.n_atoms} atoms, but "
                f"{stop - start} of {n_atoms} are read"
            )
        if start < stop:
            self._read_into(start, stop, indices, out)
        return out

    def _atom_indices(self, atoms: ArrayLike, n_atoms: int) -> AtomIndices:
        indices = np.ascontiguousarray(atoms, dtype=np.int64)
        if indices.ndim != 1 or (
            indices.size and not 0 <= indices.min() <= indices.max() < n_atoms
        ):
            raise FrameRangeError(
                f"{self.path}: atom indices must be a list of numbers from 0 to {n_atoms - 1}"
            )
        return indices

    @property
    def manifest(self) -> Mapping[str, Any] | None:
        """What mdio wrote of this output's making; None for files of others."""
        return None

    def check(self) -> Iterator[tuple[str, str | None]]:
        """Read everything once and recompute every checksum.

        Yields
        ------
        name : str
            What was checked.
        problem : str or None
            What is wrong with it.
        """
        edges = self.boundaries()
        n_rows = max(1, CHECK_NBYTES // max(1, self.info.frame_nbytes))
        at = 0
        while at < self.info.n_frames:
            beyond = int(edges[np.searchsorted(edges, at, side="right")])
            stop = min(beyond, at + n_rows) if self.info.chunk_frames is None else beyond
            name = f"frames {at} to {stop - 1}"
            try:
                self.read(at, stop)
            except OSError as error:
                yield name, str(error)
            else:
                yield name, None
            at = stop

    def close(self) -> None:
        """Close files; reading again opens them again."""
        if self._info is not None:
            self._info = None
            self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return (_reopen, (type(self), str(self.path), self.fields, self.options))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.path)!r})"


def _reopen(
    cls: type[Layout], path: str, fields: tuple[str, ...], options: dict[str, Any]
) -> Layout:
    return cls(path, fields=fields, **options)


class LayoutWriter(ABC):
    """Writes one output at a temporary path; `mdio.core.publish` gives it its name in the end.

    A writer is made once, by the owner, and pickled to the workers after `create`. The owner calls
    `create`, then for every piece of ``plan.pieces()``, in any order, what a worker has encoded is
    stored and `commit` is called with its receipt, and then `finish`.

    Parameters
    ----------
    path
        Temporary path: a file or a folder that does not exist yet.
    plan
        What to write.
    meta
        For the manifest.
    """

    def __init__(self, path: Path, plan: LayoutPlan, meta: OutputMeta) -> None:
        self.path = path
        self.plan = plan
        self.meta = meta
        self.notes: list[str] = list(plan.notes)
        """What the user is told in the end: what the plan says, and what writing found out."""

    @classmethod
    @abstractmethod
    def plan_for(cls, info: TrajectoryInfo, options: WriteOptions) -> LayoutPlan:
        """Plan an output of the frames and atoms of `info`. Pure.

        Raises
        ------
        PlanError
            Options that this layout does not have or that do not fit the trajectory.
        """

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

    @abstractmethod
    def encode(self, start: int, block: FrameBlock) -> list[Stored]:
        """Turn one piece, or a batch of one, from frame `start` on, into bytes. Pure."""

    @abstractmethod
    def store(self, item: Stored) -> None:
        """Write one encoded item where it belongs."""

    @abstractmethod
    def commit(self, receipt: Receipt) -> None:
        """Take note of a stored piece: its checksums, boxes, times and steps (owner)."""

    @abstractmethod
    def finish(self) -> None:
        """Check that every piece came, write the manifest last, flush to disk, close (owner)."""

    def abort(self) -> None:
        """Close handles after an error; the caller removes the files (owner)."""

    def __getstate__(self) -> dict[str, Any]:
        """Leave handles behind: attributes that begin with ``_handle`` do not travel."""
        return {k: v for k, v in self.__dict__.items() if not k.startswith("_handle")}
