"""Molecules that the box cuts: neighbours on two sides of it; and frames that have no box.

What takes coordinates as they are (RMSD, radius of gyration, fluctuations, fits) gives values that
may look right where the box cuts molecules, and are wrong; so does what takes nearest images where
there is no box.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from mdio.core import kernels
from mdio.core.boxes import shortest_heights, with_lengths_of_open_axes
from mdio.core.errors import MdioError
from mdio.core.frames import FrameBlock, absent_frames
from mdio.core.topology import Residues
from mdio.core.words import MAX_RUNS, plural, runs_text
from mdio.layouts.manifest import runs_from_indices

if TYPE_CHECKING:
    from mdio.layouts.base import Layout

MAX_CHAIN_DISTANCE = 8.0
"""Largest distance of successive atoms within a residue, or of neighbouring residues, angstrom."""
MAX_BOND_LENGTH = 1.7
"""Largest distance of successive atoms that are bonded, angstrom; used without a topology."""
ADVICE = "make molecules whole with --pbc whole (in Python: pbc='whole')"
ADVICE_BEFORE_FIT = (
    "convert the source again, with --pbc whole beside --fit (in Python: pbc='whole'), since the "
    "boxes stored do not lie as the frames do"
)
ADVICE_WITH_ALL_ATOMS = (
    "molecules were made whole, so that these are two of them, or bonds between these atoms are "
    "missing, as where the atoms between were left out: make molecules whole in the trajectory of "
    "all atoms, with --select SEL or --group beside --pbc whole"
)
ADVICE_WITHOUT_GROUP = (
    "make molecules whole with --pbc whole (in Python: pbc='whole'), with --select SEL in place of "
    "--group: the group stored alone lacks atoms and bonds between its own"
)
RESIDUES_UNKNOWN = (
    "without a topology, successive atoms close to each other are taken for bonded, so that more "
    "frames may be cut, or fewer: to know, give -s/--top FILE (in Python: top=)"
)


def has_box(source: Layout) -> bool:
    """Return whether the first frame has a box, or the last, as behind a structure without."""
    if source.info.has_box or not source.info.n_frames:
        return source.info.has_box
    last = source.info.n_frames - 1
    with suppress(MdioError):  # a frame that cannot be read is reported later
        return bool(source.read(last, last + 1, atoms=[]).box.any())
    return False


@dataclass(frozen=True)
class CutMoleculeFinder:
    """Finds the frames in which the box cuts molecules."""

    pairs: NDArray[np.int64]
    """Atoms, as positions in those that are read, that are in one molecule with the next, (n,)."""
    max_distance: float
    """Largest distance of such neighbours, angstrom."""
    is_rotated: bool = False
    """Whether frames were rotated by a fit, and their boxes were not."""
    knows_residues: bool = True
    advice: str = ADVICE

    @classmethod
    def of(
        cls,
        residues: Residues | None,
        n_atoms: int,
        *,
        is_rotated: bool = False,
        was_rotated: bool = False,
        is_whole: bool = False,
        in_group: bool = False,
    ) -> CutMoleculeFinder | None:
        """Return a finder for frames of some atoms; None if none of them can be found.

        `residues`: those of the atoms; None if they are not known, and without names if a parser
        made them up. Then successive atoms are compared, whether bonded or not, which says nothing
        where frames were rotated.
        `was_rotated`: they were before they were stored, so that ``pbc`` cannot make molecules
        whole. `is_whole`: these were made whole, by what bonds there were. `in_group`: the atoms
        are a stored group.
        """
        rotated = is_rotated or was_rotated
        advice = ADVICE_WITHOUT_GROUP if in_group else ADVICE
        if is_whole or was_rotated:
            advice = ADVICE_WITH_ALL_ATOMS if is_whole else ADVICE_BEFORE_FIT
        if residues is not None and residues.names is not None and not (is_whole and rotated):
            pairs = residues.neighbours
            if not len(pairs):
                return None
            return cls(pairs, MAX_CHAIN_DISTANCE, rotated, advice=advice)
        if n_atoms < 2 or rotated or is_whole:
            return None
        return cls(np.arange(n_atoms - 1), MAX_BOND_LENGTH, knows_residues=False, advice=advice)

    def frames(self, block: FrameBlock) -> NDArray[np.int64]:
        """Return numbers of the frames, (n,), that have neighbours on two sides of the box."""
        if self.is_rotated:
            return np.flatnonzero(self._have_distant_neighbours(block))
        return np.flatnonzero(
            kernels.cut_frames(block.positions, block.box, self.pairs, self.max_distance)
        )

    def _have_distant_neighbours(self, block: FrameBlock) -> NDArray[np.bool_]:
        """Return a mask of the frames with neighbours further apart than half of the box.

        How a frame is turned does not matter to it. Neighbours on two sides lie a vector of the
        cell apart, but for their distance, and none is shorter than the shortest height.
        """
        heights = shortest_heights(with_lengths_of_open_axes(block.box))
        max_bonds = np.maximum(self.max_distance, heights / 2)
        return kernels.longest_distances(block.positions, self.pairs) > max_bonds

    def note(self, frames: Sequence[int], n_frames: int, *, per_frame: bool) -> str:
        """Return the note on some of the frames analysed, in which the box cuts molecules."""
        names = runs_text(runs_from_indices(np.unique(frames)), MAX_RUNS)
        residues_note = "" if self.knows_residues else f"; {RESIDUES_UNKNOWN}"
        values = "values there are wrong" if per_frame else "values over all frames are wrong"
        return (
            f"the box cuts molecules in {len(frames):,} of {plural(n_frames, 'frame')} ({names}): "
            f"neighbouring atoms lie on two sides of it, so that {values}{residues_note}; "
            f"{self.advice}"
        )

    def notes_on_reference(self, name: str, frame: FrameBlock, in_file: bool) -> tuple[str, ...]:
        """Return a note if the box cuts molecules in the reference, ``frame 5`` or a file."""
        if not len(self.frames(frame)):
            return ()
        advice = f"make molecules whole in {name}" if in_file else self.advice
        return (
            f"the reference, {name}, has molecules that the box cuts, so that all values "
            f"are wrong; {advice}, or choose another reference (--ref-frame, in Python: "
            "reference=)",
        )


class NoCellFinder:
    """Finds frames without a unit cell, of which nearest images are not known."""

    def frames(self, block: FrameBlock) -> NDArray[np.int64]:
        return np.flatnonzero(~block.box[:, :3].any(axis=1))

    def note(self, frames: Sequence[int], n_frames: int, *, per_frame: bool) -> str:
        """Return the note on some of the frames analysed; none if no frame has a cell."""
        if len(frames) == n_frames:
            return ""
        names = runs_text(runs_from_indices(np.unique(frames)), MAX_RUNS)
        values_text = "values there are" if per_frame else "they count with"
        return (
            f"{len(frames):,} of {plural(n_frames, 'frame')} ({names}) have no unit cell: "
            f"{values_text} those of direct distances, beside those of nearest images in the others"
        )


class NoPositionsFinder:
    """Finds frames without positions, which a function may take for atoms that are far away."""

    def frames(self, block: FrameBlock) -> NDArray[np.int64]:
        return np.flatnonzero(absent_frames(block.positions))

    def note(self, frames: Sequence[int], n_frames: int, *, per_frame: bool) -> str:  # noqa: ARG002
        """Return the note on some of the frames analysed."""
        names = runs_text(runs_from_indices(np.unique(frames)), MAX_RUNS)
        return (
            f"{len(frames):,} of {plural(n_frames, 'frame')} ({names}) have no positions: all "
            "coordinates there are NaN, which is near to nothing; choose frames that have them "
            "(--step, --dt)"
        )
