"""GRO of GROMACS: a title, a number of atoms, a line for each, the box; frames follow each other.

https://manual.gromacs.org/current/reference-manual/file-formats.html#gro. Columns are as wide as
the first line has them (``-ndec``). Times and steps are in titles, as ``t=`` and ``step=``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from mdio.layouts.foreign.snapshot import Snapshot
from mdio.layouts.foreign.text.format import (
    FrameError,
    Lines,
    Span,
    TextFormat,
    integer,
    plain,
    shown,
    skip_atoms,
)

NAMES = 20
"""Columns before those of coordinates."""
FIRST_POINT = 24
"""Column of the first decimal point, whatever the precision."""
LEAST_NBYTES = NAMES + 3
_TIME = re.compile(rb"(?:^|[\s,;])t\s*=\s*([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)")
_STEP = re.compile(rb"(?:^|[\s,;])step\s*=\s*(-?\d+)")
_CLOSE = re.compile(rb"-?\d+\.\d{5}")
"""A length of a box, which may touch the next."""


class GRO(TextFormat):
    """GRO, of one frame or many."""

    kind = "GRO"

    def spans(self, lines: Lines, nbytes: int | None) -> Iterator[Span]:
        """Yield the frames."""
        while title := lines.peek():
            start = lines.offset
            lines.next()
            n_atoms = integer(lines.next(), "a number of atoms")
            atom = lines.peek()
            skip_atoms(lines, n_atoms, nbytes, LEAST_NBYTES)
            box = lines.next()
            if _n_lengths(box) not in (3, 9):
                raise FrameError(
                    f"{shown(box)} in place of a box of 3 or 9 numbers behind {n_atoms} atoms",
                    at_end=not lines.peek(),
                )
            fields = {"time"} if _TIME.search(title) else set()
            if len(atom.rstrip()) >= NAMES + 6 * _width(atom):
                fields.add("velocities")
            yield Span(start, lines.offset, n_atoms, frozenset(fields))

    def is_whole_without_newline(self, raw: bytes) -> bool:
        """Return whether the numbers of the box have as many decimals each, at least three."""
        decimals = {len(word.partition(b".")[2]) for word in raw.splitlines()[-1].split()}
        return len(decimals) == 1 and decimals.pop() >= 3

    def read(self, raw: bytes, n_atoms: int) -> Snapshot:
        """Return a frame; velocities are those of all atoms, or none."""
        title, _, *atoms = plain(raw).splitlines()
        atoms = atoms[:n_atoms]
        width = _width(atoms[0].encode())
        n_columns = [(len(line.rstrip()) - NAMES) // width for line in atoms]
        # Some programs write velocities of some atoms only.
        if not {*n_columns} <= {n_columns[0], 3} or n_columns[0] not in (3, 6):
            raise FrameError(
                f"atoms of {' and '.join(map(str, sorted({*n_columns})))} numbers {width} "
                "characters wide, expected 3 (positions) or 6 (and velocities) of each"
            )
        points = slice(FIRST_POINT, NAMES + 3 * width, width)
        if shifted := next((line for line in atoms if line[points] != "..."), None):
            raise FrameError(
                f"{shown(shifted.encode())}, whose decimal points are not where those of the "
                "first atom are"
            )
        snapshot = super().read(raw, n_atoms)
        if n_columns[0] == 6:
            if snapshot.velocities is None:  # MDAnalysis takes zeros for none
                snapshot.velocities = np.zeros((n_atoms, 3), np.float32)
            snapshot.velocities[[n == 3 for n in n_columns]] = np.nan
        if time := _TIME.search(title.encode()):
            snapshot.time = float(time[1])
        if step := _STEP.search(title.encode()):
            snapshot.step = int(step[1])
        return snapshot


def _n_lengths(line: bytes) -> int:
    """Return how many numbers a box has; 0 if it has others."""
    words = line.split()
    try:
        [float(word) for word in words]
    except ValueError:
        words = _CLOSE.findall(line)
        return len(words) if b"".join(words) == b"".join(line.split()) else 0
    return len(words)


def _width(atom: bytes) -> int:
    """Return how wide a coordinate is: as far as decimal points are from each other."""
    first = atom.find(b".", NAMES)
    second = atom.find(b".", first + 1)
    if first != FIRST_POINT or second < 0:
        raise FrameError(f"{shown(atom)} in place of an atom with coordinates from column 21 on")
    return second - first
