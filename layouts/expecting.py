"""What a layout is told of the reads to come, so that their bytes are asked for beforehand."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mdio.core.blocks import Spans
from mdio.core.files.in_flight import InFlight
from mdio.core.files.remote.paths import RemotePath
from mdio.core.files.requests import ByteRange
from mdio.core.frames import TrajectoryInfo

if TYPE_CHECKING:
    from mdio.core.cache.folder import Cache
    from mdio.layouts.caching.reads import UnitReads


def notes_on(cache: Cache, path: Path, works: bool) -> Iterator[str]:
    """Yield what is odd about keeping units of the trajectory `path` in `cache`.

    `works` is whether its layout says where its frames lie.
    """
    if not works:
        yield (
            f"{path}: no unit of it can be kept, since only MDAnalysis or a library knows where "
            "its frames lie; it is read from the source: convert it, and keep units of the output"
        )
    from mdio.layouts.striping.networks import is_network
    from mdio.layouts.striping.stripes import file_system_type

    kind = file_system_type(cache.root)
    if is_network(kind):
        yield (
            f"{cache.root}: it lies on a file system of the network ({kind}), where a cache gains "
            "nothing and all nodes share it; give a folder on a disk of each node"
        )


Runs = Iterable[tuple[int, int]]
RUNS_AHEAD = 1000
GUESSED_RUNS = 8
"""So many are looked at while nobody knows how much will be read, and as many as have been:
see `mdio.core.files.in_flight.GUESSED_NBYTES`."""
APART_AHEAD = 24
"""Of runs with gaps between them, so many."""
AtomIndices = NDArray[np.int64]


class Expecting:
    """The part of a layout that asks for bytes before they are read, and keeps them on the node."""

    cache: Cache | None = None
    """Where units of it are kept on this node."""
    path: Path
    members: tuple[Any, ...] | Any
    _ahead: InFlight | None = None
    _unit_reads: dict[str, UnitReads] | None = None
    _told: tuple[str, ...] = ()
    _is_led = False
    """Whether somebody says what will be read."""

    @property
    def info(self) -> TrajectoryInfo:
        """What is in it; opens it if need be."""
        raise NotImplementedError

    def cached_as(self, atoms: AtomIndices | None) -> tuple[str, AtomIndices | None]:  # noqa: ARG002
        """Return what the cache keeps for reads of `atoms`: its name, and which atoms it has.

        All of the frames by default, and then no name and no atoms.
        """
        return "", None

    def unit_reads(self, atoms: AtomIndices | None) -> UnitReads | None:
        """Return what reads `atoms` through the cache; None without one, or without atoms."""
        if self.cache is None or (atoms is not None and not atoms.size):
            return None
        _ = self.info
        label, kept = self.cached_as(atoms)
        if self._unit_reads is None:
            self._unit_reads = {}
        found = self._unit_reads.get(label)
        if found is None:
            from mdio.layouts.caching.reads import UnitReads

            found = self._unit_reads[label] = UnitReads(self, self.cache, label, kept)  # type: ignore[arg-type]
            for note in notes_on(self.cache, self.path, found.works):
                found.source.note(note)
        return found

    @property
    def cache_notes(self) -> tuple[str, ...]:
        """What is to be told of the cache, each once."""
        own = (note for one in (self._unit_reads or {}).values() for note in one.source.notes)
        others = (note for one in self.members if one is not self for note in one.cache_notes)
        return tuple(dict.fromkeys([*self._told, *own, *others]))

    def byte_ranges(
        self,
        start: int,  # noqa: ARG002
        stop: int,  # noqa: ARG002
        atoms: AtomIndices | None,  # noqa: ARG002
    ) -> Iterator[ByteRange]:
        """Yield the bytes that reading frames ``start:stop`` of `atoms` takes, in its order.

        Small tables may be left out, and all may where nothing is gained.
        Raises SourceError or CorruptLayoutError as reading does.
        """
        yield from ()

    @property
    def in_store(self) -> bool:
        """Whether its frames come from a store; of what is open."""
        return isinstance(self.path, RemotePath)

    def look_ahead(self, runs: Spans, atoms: AtomIndices | None) -> None:
        """Ask for objects that reading runs of frames opens, for no others any more.

        `runs`: first frame, and one beyond the last; they ascend, with gaps between them.
        """

    def source_ranges(
        self, start: int, stop: int, atoms: AtomIndices | None
    ) -> Iterator[ByteRange]:
        """Yield what of `byte_ranges` will come from files, and not from a cache of the node."""
        reads = self.unit_reads(atoms)
        if reads is None:
            yield from self.byte_ranges(start, stop, atoms)
        else:
            yield from reads.source_ranges(start, stop)

    def expect(
        self, runs: Runs, atoms: AtomIndices | None = None, *, guessed: bool = False
    ) -> None:
        """Say what will be read next; what was said before is forgotten.

        `runs`: first frame, and one beyond the last, of the reads to come, in their order. Looked
        at as reading goes on, so that there may be many. `atoms`: as those reads have them.
        `guessed`: whether reading may end at any time: then little is asked of stores at first.
        """
        self._is_led = True
        _ = self.info  # opens it
        self._expect(runs, atoms, guessed=guessed)

    def expect_run(self, start: int, stop: int, atoms: AtomIndices | None) -> None:
        """Ask for what reading objects' frames takes now, unless somebody leads."""
        if self.in_store and not self._is_led:
            if stop - start > 1:
                self._expect([(start, stop)], atoms)
            else:
                self.look_ahead([(start, stop)], atoms)

    def _expect(self, runs: Runs, atoms: AtomIndices | None, *, guessed: bool = False) -> None:
        if self._ahead is None:
            self._ahead = InFlight()
        remote = self.in_store
        runs = (run for run in runs if run[0] < run[1])
        runs = self._announced(runs, atoms, guessed=guessed) if remote else runs
        wanted = (
            wanted for start, stop in runs for wanted in self.source_ranges(start, stop, atoms)
        )
        self._ahead.expect(wanted, guessed=guessed and remote)

    def _announced(
        self, runs: Runs, atoms: AtomIndices | None, *, guessed: bool
    ) -> Iterator[tuple[int, int]]:
        """Yield `runs`, and look ahead at those that come next."""
        rest = iter(runs)
        following, near = next(rest, None), deque[tuple[int, int]]()
        joined = deque[tuple[int, int]]()
        """Those near, joined where there is no gap between them."""
        most, more = (GUESSED_RUNS, 1) if guessed else (RUNS_AHEAD, 0)
        while near or following is not None:
            while following is not None and len(near) < most and len(joined) < APART_AHEAD:
                goes_on = bool(joined) and joined[-1][1] == following[0]
                begin = joined.pop()[0] if goes_on else following[0]
                joined.append((begin, following[1]))
                near.append(following)
                following = next(rest, None)
            self.look_ahead(tuple(joined), atoms)
            yield near[0]
            _, until = near.popleft()
            _, end = joined.popleft()
            if until < end:
                joined.appendleft((until, end))
            most = min(most + more, RUNS_AHEAD)

    def expect_nothing(self) -> None:
        """Let go of what was asked for and not read."""
        self._is_led = False
        if self._ahead is not None:
            self._ahead.stop()
            self.look_ahead((), None)

    def let_go_of_units(self) -> None:
        """Close what is open of the cache."""
        self._told = self.cache_notes
        for reads in (self._unit_reads or {}).values():
            reads.close()
        self._unit_reads = None
