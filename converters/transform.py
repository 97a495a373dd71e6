"""Periodic boundaries as a layout: ``--pbc`` and ``--center``.

All but ``nojump`` look at one frame alone. That one counts over how many boundaries each atom has
gone since the first frame: the sum of what each block of frames counts by itself, so that workers
count blocks first, and then each knows where it begins (`mdio.converters.strategies.counting`).
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mdio.core import kernels
from mdio.core.boxes import vectors_from_boxes
from mdio.core.errors import PlanError
from mdio.core.frames import FrameBlock, TrajectoryInfo
from mdio.core.topology.molecules import molecules_of
from mdio.layouts.base import AtomIndices, Layout

PBC_CHOICES = ("whole", "mol", "atom", "nojump", "wrap", "unwrap")
"""``whole`` (``unwrap``): molecules made whole; ``mol``: and put into the cell by their centres;
``atom`` (``wrap``): each atom into the cell; ``nojump``: atoms go on where they leave it."""
NEED_BONDS = ("whole", "mol", "unwrap")
RUN_NBYTES = 16 << 20
"""Positions that are read at a time where only jumps are counted."""

Counts = NDArray[np.int32]


@dataclass(frozen=True)
class Steps:
    """What is done to the frames of some atoms; atoms are numbered as they are read."""

    wanted: AtomIndices | None
    """Of the source; None = all."""
    needed: AtomIndices | None
    """Which of the source's are read."""
    taken: AtomIndices | None
    """Where those that are wanted are among them; None = just as they are read."""
    links: NDArray[np.int64] | None = None
    centred: NDArray[np.int64] | None = None
    molecules: tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]] | None = None
    follows: bool = False
    counts: dict[int, bytes] | None = None
    """Of some frames, over how many boundaries atoms have gone by then."""

    def is_for(self, atoms: AtomIndices | None) -> bool:
        """Return whether these are the steps for `atoms`."""
        if atoms is None or self.wanted is None:
            return atoms is self.wanted
        return np.array_equal(atoms, self.wanted)


@dataclass
class _Followed:
    """How far atoms have been followed: up to the frame before `frame`."""

    frame: int
    last: NDArray[np.float64]
    counts: Counts
    known: bool = False


class TransformedLayout(Layout):
    """A source whose molecules are put together, and in the cell, as it is read.

    The steps are these: jumps undone, molecules made whole, all moved to the centre, molecules (or
    atoms) put into the cell. Only atoms that are wanted, and those that their molecules and the
    centre need, are read.

    `path`: path of the source, for messages. `source`: the layout to read from. `top`: topology
    file; None = what the source has. `pbc`: one of `PBC_CHOICES`, or None. `center`: selection
    whose centre of geometry goes to the centre of the box, or None. With ``whole``, molecules are
    then put into the cell as with ``mol``, around those atoms. `steps`: what has been prepared of
    these; for other processes.
    """

    name = "transformed"
    known_options = frozenset({"source", "top", "pbc", "center", "steps"})

    def __init__(
        self,
        path: str | PathLike[str],
        *,
        source: Layout,
        top: str | PathLike[str] | None,
        pbc: str | None = None,
        center: str | None = None,
        steps: Steps | None = None,
        **options: Any,
    ) -> None:
        given: dict[str, Any] = {"top": top, "pbc": pbc, "center": center, "steps": steps}
        super().__init__(path, source=source, **given, **options)
        if pbc is not None and pbc not in PBC_CHOICES:
            raise PlanError(f"--pbc {pbc!r} is unknown; choose from {', '.join(PBC_CHOICES)}")
        self.source, self.pbc, self.center = source, pbc, center
        self._followed: _Followed | None = None
        if steps is None and not source.info.has_box:
            raise PlanError(
                f"{self.path}: its first frame has no unit cell, which --pbc and --center need; "
                "leave them out, or give a trajectory that has one in every frame"
            )

    @classmethod
    def sniff(cls, path: Path) -> bool:  # noqa: ARG003
        """No bytes on disk are a transformation."""
        return False

    def _open(self) -> TrajectoryInfo:
        # What comes out is no longer the integers of an XTC source.
        return self.source.info.replace(
            precision=None, xtc_integers=False, compression=None, groups={}
        )

    def _close(self) -> None:
        self.source.close()

    def files(self) -> Iterator[Layout]:
        """Yield itself: its frames are not those of a file."""
        yield self

    @cached_property
    def universe(self) -> Any:
        """The Universe of the topology; whoever has it may set it."""
        from mdio.converters.selection import load_topology, stored_universe

        if self.options["top"] is not None:
            return load_topology(self.options["top"], self.source)
        stored = self.source.topology()
        if stored is None:
            raise PlanError(
                f"{self.path}: --pbc {'/'.join(NEED_BONDS[:2])} and --center need a topology; name "
                "one with -s/--top FILE"
            )
        return stored_universe(stored, self.source)

    def prepared(self, atoms: AtomIndices | None) -> Steps:
        """Return the steps for some atoms of the source, which are kept for the next time.

        Raises PlanError: there is no topology, or it has no bonds, or the selection is wrong.
        """
        steps: Steps | None = self.options["steps"]
        if steps is None or not steps.is_for(atoms):
            steps = self.options["steps"] = self._steps(atoms)
            self._followed = None
        return steps

    def _steps(self, atoms: AtomIndices | None) -> Steps:
        n_atoms = self.source.info.n_atoms
        needed = np.ones(n_atoms, bool)
        if atoms is not None:
            needed[:] = False
            needed[atoms] = True
        centre = None if self.center is None else self._selected(self.center)
        if centre is not None:
            needed[centre] = True
        links = molecules = None
        if self.pbc in NEED_BONDS:
            labels, order, parents = molecules_of(self._bonds(), n_atoms)
            needed = np.isin(labels, labels[needed])
        place = np.cumsum(needed) - 1
        if self.pbc in NEED_BONDS:
            bound = (parents >= 0) & needed[order]
            links = np.ascontiguousarray(place[[order[bound], parents[bound]]].T)
            if self.pbc == "mol" or centre is not None:
                kept = order[needed[order]]
                starts = np.flatnonzero(np.diff(labels[kept], prepend=-1, append=-1))
                molecules = (place[kept], starts, self._weights(kept, starts))
        elif self.pbc in ("atom", "wrap"):
            every = np.arange(int(needed.sum()) + 1)
            molecules = (every[:-1], every, np.ones(len(every) - 1))
        which = np.flatnonzero(needed)
        same = len(which) == n_atoms if atoms is None else np.array_equal(atoms, which)
        return Steps(
            wanted=atoms,
            needed=None if len(which) == n_atoms else which,
            taken=None if same or atoms is None else place[atoms],
            links=links,
            centred=None if centre is None else place[centre],
            molecules=molecules,
            follows=self.pbc == "nojump",
        )

    def _selected(self, selection: str) -> NDArray[np.int64]:
        from mdio.layouts.foreign.universe import selected

        found = selected(self.universe.atoms, selection, "--center")
        if not len(found):
            raise PlanError(f"--center: {selection!r} selects no atoms")
        return found

    def _bonds(self) -> NDArray[np.int64]:
        bonds = getattr(self.universe.atoms, "bonds", None)
        if bonds is None or not len(bonds):
            raise PlanError(
                f"--pbc {self.pbc} needs bonds, and the topology {self.options['top'] or self.path}"
                " has none; give one that has them with -s/--top (TPR, PSF, PRMTOP, a PDB with "
                "CONECT), or take --pbc atom or nojump"
            )
        found = np.asarray(bonds.to_indices(), np.int64)
        masses = getattr(self.universe.atoms, "masses", np.ones(len(self.universe.atoms)))
        # Virtual sites, which topologies have no bonds of, go with the first atom of the residue.
        alone = np.setdiff1d(np.flatnonzero(np.asarray(masses) == 0), found)
        residues = self.universe.atoms.resindices
        firsts = np.unique(residues, return_index=True)[1][residues[alone]]
        return np.concatenate([found, np.stack([firsts, alone], axis=1)])

    def _weights(self, atoms: AtomIndices, starts: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return masses, where there are some, as parts of the molecule's."""
        masses = np.asarray(getattr(self.universe.atoms, "masses", np.ones(0)), np.float64)
        masses = masses[atoms] if len(masses) else np.ones(len(atoms))
        sums = np.repeat(np.add.reduceat(masses, starts[:-1]), np.diff(starts))
        sizes = np.repeat(np.diff(starts), np.diff(starts))
        has_mass = np.isfinite(sums) & (sums > 0)
        return np.where(has_mass, masses / np.where(has_mass, sums, 1), 1 / sizes)

    def _read_into(
        self, start: int, stop: int, atoms: AtomIndices | None, block: FrameBlock
    ) -> None:
        if atoms is not None and atoms.size == 0:
            self.source.read(start, stop, atoms=atoms, out=block)
            return
        steps = self.prepared(atoms)
        followed = self._followed_to(start, steps) if steps.follows else None
        same = steps.taken is None
        part = self._part(start, stop, steps, block if same else None)
        if followed is not None:
            _follow(followed, part)
        where = part.positions, part.box
        if steps.links is not None:
            kernels.make_whole(*where, steps.links)
        if steps.centred is not None:
            kernels.centre(*where, steps.centred)
        if steps.molecules is not None:
            atoms, starts, weights = steps.molecules
            kernels.put_in_cell(*where, atoms, starts, weights)
        if steps.taken is not None:
            block.assign(part.take(steps.taken))

    def _part(
        self, start: int, stop: int, steps: Steps, out: FrameBlock | None = None
    ) -> FrameBlock:
        part = self.source.read(start, stop, atoms=steps.needed, out=out)
        lacking = ~(vectors_from_boxes(part.box)[:, 2, 2] > 0)
        if lacking.any():
            raise PlanError(
                f"{self.path}: frame {start + int(lacking.argmax())} has no unit cell, and --pbc "
                "and --center need one in every frame; leave it out, or leave them out"
            )
        return part

    def _followed_to(self, start: int, steps: Steps) -> _Followed:
        """Return how often atoms have crossed boundaries before frame `start`."""
        counts = steps.counts or {}
        base = max((frame for frame in counts if frame <= start), default=0)
        now = self._followed
        if now is None or not base <= now.frame <= start:
            now = self._followed = self._unmoved(base, steps)
            if base:
                now.counts[:] = unpacked(counts[base]).reshape(-1, 3)
        return self._advance(now, start, steps)

    def _unmoved(self, frame: int, steps: Steps) -> _Followed:
        n_atoms = self.source.info.n_atoms if steps.needed is None else len(steps.needed)
        return _Followed(frame, np.zeros((n_atoms, 3)), np.zeros((n_atoms, 3), np.int32))

    def _advance(self, now: _Followed, stop: int, steps: Steps) -> _Followed:
        run = max(1, RUN_NBYTES // max(1, 12 * len(now.last)))
        while now.frame < stop:
            part = self._part(now.frame, min(now.frame + run, stop), steps)
            _follow(now, part, apply=False)
        return now

    def counted(self, run: tuple[int, int]) -> bytes:
        """Return how often atoms cross boundaries from one frame to another, packed."""
        start, stop = run
        steps: Steps = self.options["steps"]
        return packed(self._advance(self._unmoved(start, steps), stop + 1, steps).counts)


def _follow(now: _Followed, part: FrameBlock, *, apply: bool = True) -> None:
    kernels.follow(part.positions, part.box, now.last, now.counts, known=now.known, apply=apply)
    now.frame, now.known = now.frame + part.n_frames, True


def packed(counts: Counts) -> bytes:
    """Return counts as bytes, most of which are zeros."""
    return zlib.compress(counts.tobytes(), 1)


def unpacked(counts: bytes) -> Counts:
    """Return what was packed, in one dimension."""
    return np.frombuffer(zlib.decompress(counts), np.int32)
