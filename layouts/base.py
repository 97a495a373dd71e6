"""The contract of a layout that is read: random access to runs of frames."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import suppress
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mdio.core.closing import Closing
from mdio.core.errors import CorruptLayoutError, FrameRangeError, OptionError, named
from mdio.core.files.remote.paths import path_of
from mdio.core.frames import FIELDS, FrameBlock, TrajectoryInfo
from mdio.layouts.capabilities import Capabilities, boundaries_of
from mdio.layouts.expecting import AtomIndices, Expecting
from mdio.layouts.units import Unit, Wanted, check_units, mendable, runs_of_frames

if TYPE_CHECKING:
    from mdio.core.cache.folder import Cache
    from mdio.layouts.output import EncodedChunk

__all__ = ["AtomIndices", "Layout"]


ASSUMED = {"dt": ("--timestep", "times"), "length_unit": ("--length-unit", "units of lengths")}
"""What options are called that say what a format does not hold, and what that is."""


class Layout(Expecting, Capabilities, Closing, ABC):
    """A trajectory on disk, opened for reading on first use.

    A layout pickles as (path, options) and reopens in the process that unpickles it: no handle
    crosses a process. Subclasses implement `_open`, `_read_into`, `_close` and `sniff`.

    Parameters
    ----------
    path
        File or folder.
    fields
        Which per-atom arrays to read of those that are there; all by default.
    verify
        Compare whatever is read with the checksums that the output holds. False trusts the disk.
    uuid
        Identity of the output that is expected there; by default, whatever is found on first use.
    cache
        Where this node keeps what is read of it.
    **options
        What the subclass documents (``group=`` for layouts with stored groups). All take
        ``n_atoms``, which is for formats that do not say how many atoms they have.

    Raises
    ------
    OptionError
        The layout has no such option (a TypeError).
    """

    name: ClassVar[str]
    suffixes: ClassVar[tuple[str, ...]] = ()
    known_options: ClassVar[frozenset[str] | None] = frozenset()
    """Names of its options; None if it takes any, for somebody else."""
    _known: Any = None  # what opening it found in another process

    def __init__(
        self,
        path: str | PathLike[str],
        *,
        fields: Sequence[str] = FIELDS,
        verify: bool = True,
        uuid: str | None = None,
        cache: Cache | None = None,
        **options: Any,
    ) -> None:
        self.path = path_of(path)
        self.fields = tuple(fields)
        self.verify = verify
        self.uuid = uuid
        self.cache = cache
        self.options = options
        self._check_options()
        self._info: TrajectoryInfo | None = None

    def not_assumed(self, option: str) -> OptionError:
        """Return the error for an option that says what the format, or the file, holds itself."""
        flag, what = ASSUMED[option]
        return OptionError(
            f"{self.path}: it has {what} of its own, so that there is nothing to assume; leave out "
            f"{flag} (in Python: {option}=)"
        )

    def _check_options(self) -> None:
        if self.known_options is None:
            return
        if unknown := sorted(self.options.keys() - self.known_options - {"n_atoms"}):
            known = ", ".join(sorted({*self.known_options, "fields"}))
            if unknown[0] in ASSUMED:
                raise self.not_assumed(unknown[0])
            raise OptionError(
                f"{self.path}: the layout {self.name} has no option {unknown[0]!r}; it has {known} "
                "and verify"
            )

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
    def is_open(self) -> bool:
        """Whether it has handles, and knows what is there."""
        return self._info is not None

    @property
    def info(self) -> TrajectoryInfo:
        """What is in the trajectory; opens it if need be."""
        if self._info is None:
            try:
                self._info = self._open()
            except OSError as error:
                self._explain(error)
                raise
            self._check_identity()
        return self._info

    def _check_identity(self) -> None:
        """Refuse another output under the same name: once opened, a layout is one and the same."""
        found = (self.manifest or {}).get("uuid")
        if self.uuid is not None and found != self.uuid:
            self.close()
            raise self._replaced()
        self.uuid = found

    def _explain(self, error: OSError) -> None:
        """Raise what says more than `error` does: the system's own names no file."""
        better: OSError | None = named(self.path, error)
        if isinstance(error, CorruptLayoutError):
            replaced = self.uuid is not None and self.uuid_at(self.path) not in (None, self.uuid)
            manifest = self.manifest if self._info is not None else None
            better = self._replaced() if replaced else mendable(self.path, manifest, error)
        if better is not None:
            raise better from error

    def _replaced(self) -> CorruptLayoutError:
        return CorruptLayoutError(
            f"{self.path}: was replaced while it was open, so what was read of it is of another "
            "output; open it again"
        )

    @property
    def kept(self) -> list[tuple[Layout, int, int]]:
        """Its members, and which frames of each."""
        return [(self, 0, self.info.n_frames)]

    def files(self) -> Iterator[Layout]:
        """Yield layouts of its files, each by itself, not open."""
        yield type(self)(self.path, **{name: self.options[name] for name in self._assumed})

    @property
    def _assumed(self) -> list[str]:
        """Options that say what the file does not."""
        return [name for name in ASSUMED if self.options.get(name) is not None]

    def boundaries(self) -> NDArray[np.int64]:
        """Return the frames at which the layout's own pieces begin, ascending, ``n_frames`` last.

        Blocks that begin and end at these read no chunk, shard or segment twice.
        """
        return boundaries_of(self.info)

    def read(
        self, start: int, stop: int, atoms: ArrayLike | None = None, out: FrameBlock | None = None
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
            found = f"{out.n_frames} frames of {out.n_atoms} atoms"
            raise ValueError(f"out holds {found}, but {stop - start} of {n_atoms} are read")
        if start < stop:
            try:
                self.expect_run(start, stop, indices)
                reads = self.unit_reads(indices)
                (self._read_into if reads is None else reads.read)(start, stop, indices, out)
            except OSError as error:
                self._explain(error)
                raise
        return out

    def _atom_indices(self, atoms: ArrayLike, n_atoms: int) -> AtomIndices:
        wanted = f"{self.path}: atom indices must be a list of numbers from 0 to {n_atoms - 1}"
        if isinstance(atoms, str):
            raise FrameRangeError(
                f"{wanted}; for a selection, universe.select_atoms({atoms!r}).indices"
            )
        indices = np.ascontiguousarray(atoms, dtype=np.int64)
        outside = indices.size and not 0 <= indices.min() <= indices.max() < n_atoms
        if indices.ndim != 1 or outside:
            raise FrameRangeError(wanted)
        return indices

    @property
    def notes(self) -> tuple[str, ...]:
        """What the user should know, a sentence each: where files are cut, what is made up."""
        info = self.info
        return (*map(str, info.lost), *(f"{self.path}: {text}" for text in info.made_up))

    def units(self) -> Iterator[Unit]:
        """Yield all that there is to check, always in the same order."""
        yield from runs_of_frames(self.info, self.boundaries(), self.read, self.byte_ranges)

    def check(self, wanted: Wanted | None = None) -> Iterator[tuple[str, str | None]]:
        """Read everything once, or the units whose numbers are `wanted`, and compare checksums.

        Yields
        ------
        name : str
            What was checked.
        problem : str or None
            What is wrong with it.
        """
        yield from check_units(self.units(), wanted)

    def stored(self, start: int, stop: int) -> list[EncodedChunk]:  # noqa: ARG002
        """Return what its writer once made of the frames of a piece, as it lies on disk.

        Raises
        ------
        CorruptLayoutError
            Some of it is not what was written.
        """
        raise CorruptLayoutError(f"{self.path}: {self.name} keeps no checksums of what it stores")

    def close(self) -> None:
        """Close files; reading again opens them again."""
        if self._info is not None:
            self.expect_nothing()
            self.let_go_of_units()
            self._info = None
            self._close()

    def __del__(self) -> None:
        with suppress(Exception):  # the interpreter may be ending
            self.close()

    def _knowing(self, found: Any) -> Layout:
        """Return the same layout, not open, which pickles with what opening it has `found`."""
        again, given, _ = Layout.__reduce__(self)
        made: Layout = again(*given)
        made._known = found
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        more = {"verify": self.verify, "uuid": self.uuid, "cache": self.cache}
        given = (type(self), str(self.path.absolute()), self.fields, self.options | more)
        return _reopen, given, {"_known": self._known}


def _reopen(cls: type[Layout], path: str, fields: Sequence[str], options: dict[str, Any]) -> Layout:
    return cls(path, fields=fields, **options)
