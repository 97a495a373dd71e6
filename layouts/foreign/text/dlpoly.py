"""HISTORY of DL_POLY: two lines of header, then frames that begin with ``timestep``.

Such a line has the step, the number of atoms, a key of what is written, a key of the boundaries,
the time step in ps, and in newer files the time. Forces are in dalton angstrom/ps^2.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from mdio.layouts.foreign.snapshot import Snapshot
from mdio.layouts.foreign.text.format import (
    FrameError,
    Lines,
    SameAtoms,
    Span,
    TextFormat,
    plain,
    remark_on_axes,
    shown,
    skip_atoms,
    without_axes,
)

BEGINS = b"timestep"
LEAST_NBYTES = 8
"""Of two lines such as ``C`` and ``0 0 0``."""
FORCE = np.float32(1e-2)
"""A dalton angstrom/ps^2 in kJ/(mol angstrom)."""
PERIODIC = {0: (False,) * 3, 1: (True,) * 3, 2: (True,) * 3, 3: (True,) * 3, 6: (True, True, False)}
"""Axes by the key of boundaries."""
SHAPES = {4: "a truncated octahedron", 5: "a rhombic dodecahedron", 7: "a hexagonal prism"}
"""Boundaries of which the vectors in the file do not tell the lattice."""
TILTED = 1e-3
"""How far, as a part of its length, a cell may lie beside where boxes do."""
_REAL = rb"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
_VECTOR = re.compile(rb"\s*%s(?:\s+%s){2}\s*" % (_REAL, _REAL))


class History(TextFormat):
    """A trajectory of DL_POLY."""

    kind = "HISTORY"

    def __init__(self, kind: str, options: Mapping[str, Any]) -> None:
        super().__init__(kind, options)
        self._numbers = SameAtoms("number")

    def spans(self, lines: Lines, nbytes: int | None) -> Iterator[Span]:
        """Yield the frames."""
        lines.take(2)
        while lines.peek():
            start = lines.offset
            n_atoms, key = _numbers(lines.next())[1:4:2]
            has_cell = _VECTOR.fullmatch(lines.peek()) is not None
            cell = lines.take(3) if has_cell else []
            if has_cell and not all(map(_VECTOR.fullmatch, cell)):
                raise FrameError(f"{shown(cell[-1])} in place of a vector", at_end=not lines.peek())
            lines.next()
            per_atom = 1
            while _VECTOR.fullmatch(lines.peek()):
                lines.next()
                per_atom += 1
            if not 2 <= per_atom <= 4:
                at_end = not lines.peek()
                raise FrameError(f"{per_atom - 1} vectors of the first atom", at_end=at_end)
            count = (n_atoms - 1) * per_atom
            skip_atoms(lines, count, nbytes, LEAST_NBYTES // 4, says=n_atoms)
            fields = {"time", *("velocities", "forces")[: per_atom - 2]}
            remarks = _remarks(key, cell)
            yield Span(start, lines.offset, n_atoms, frozenset(fields), remarks)

    def text_for_mdanalysis(self, raw: bytes) -> str:
        """Return a file of one frame, whose header says what the frame holds.

        Of atoms it has names and numbers: MDAnalysis takes three words for a vector of a cell.
        """
        _, n_atoms, _, key = _numbers(raw.split(b"\n", 1)[0])
        n_vectors = self._n_vectors(raw)
        lines = plain(raw).splitlines()
        n_words = 2 if self._atom_numbers(raw) else 1
        begin = 4 if _VECTOR.fullmatch(lines[1].encode()) else 1
        for at in range(begin, len(lines), 1 + n_vectors):
            lines[at] = " ".join(lines[at].split()[:n_words])
        return "\n".join(["one frame", f"{n_vectors - 1} {key} {n_atoms}", *lines, ""])

    @staticmethod
    def _n_vectors(raw: bytes) -> int:
        """Return how many lines follow that of the first atom."""
        lines = raw.splitlines()[1:]
        first = 3 if _VECTOR.fullmatch(lines[0]) else 0
        vectors = lines[first + 1 : first + 4]
        count = 0
        while count < len(vectors) and _VECTOR.fullmatch(vectors[count]):
            count += 1
        return count

    def read(self, raw: bytes, n_atoms: int) -> Snapshot:
        """Return a frame; atoms are in the order of their numbers."""
        line, rest = raw.split(b"\n", 1)
        step, _, _, key = _numbers(line)
        cell = rest.splitlines()[:3] if _VECTOR.fullmatch(rest.split(b"\n", 1)[0]) else []
        if numbers := self._atom_numbers(raw):
            self._numbers.check(np.array(numbers, np.int64))
        snapshot = super().read(raw, n_atoms)
        if not cell or key not in PERIODIC or _is_turned(cell):
            snapshot.box = None
        else:
            snapshot.box = without_axes(snapshot.box, PERIODIC[key])
        if snapshot.forces is not None:
            snapshot.forces *= FORCE
        words = line.split()
        snapshot.step = step
        snapshot.time = float(words[6]) if len(words) > 6 else step * float(words[5])
        return snapshot

    def _atom_numbers(self, raw: bytes) -> list[int]:
        """Return the numbers of atoms; none if they have none, or all the same."""
        lines = raw.splitlines()
        begin = 4 if _VECTOR.fullmatch(lines[1]) else 1
        rows = [line.split() for line in lines[begin :: 1 + self._n_vectors(raw)]]
        numbers = [int(row[1]) for row in rows if len(row) > 1]
        return numbers if len(numbers) == 1 or len({*numbers}) > 1 else []


def _numbers(line: bytes) -> list[int]:
    """Return step, atoms, and the keys of a line ``timestep``; raises FrameError."""
    words = line.split()
    try:
        if words[0] != BEGINS or not line.startswith(BEGINS):
            raise ValueError
        numbers = [int(word) for word in words[1:5]]
        [float(word) for word in words[5:7]]
        if len(numbers) < 4 or len(words) < 6 or numbers[1] < 1:
            raise ValueError
    except (ValueError, IndexError):
        raise FrameError(
            f"{shown(line)} in place of timestep and the step, the number of atoms, two keys and "
            "the time step",
            at_end=not line.endswith(b"\n"),
        ) from None
    return numbers


def _is_turned(cell: list[bytes]) -> bool:
    """Return whether vectors lie otherwise than lengths and angles say."""
    vectors = np.array([line.split() for line in cell], np.float64)
    return bool((np.abs(np.triu(vectors, 1)) > TILTED * np.abs(vectors).max()).any())


def _remarks(key: int, cell: list[bytes]) -> tuple[str, ...]:
    """Return what of a cell is not read."""
    if not cell:
        return ()
    if key not in PERIODIC:
        shape = SHAPES.get(key, "not known")
        return (f"boundaries of key {key} are {shape}: no box is read",)
    if _is_turned(cell):
        return ("the cell is turned against x, y and z: no box is read",)
    return remark_on_axes(PERIODIC[key], f"boundary key {key}")
