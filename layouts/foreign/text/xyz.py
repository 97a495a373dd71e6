"""XYZ and extended XYZ: a number of atoms, a comment, a line for each atom.

Extended XYZ (https://github.com/libAtoms/extxyz) says in the comment what the columns are
(``Properties``), the cell (``Lattice``: its three vectors) and along which of them it repeats
(``pbc``).
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from mdio.core.boxes import boxes_from_vectors
from mdio.layouts.foreign.snapshot import Snapshot
from mdio.layouts.foreign.text.format import (
    FrameError,
    Lines,
    Span,
    TextFormat,
    integer,
    plain,
    remark_on_axes,
    shown,
    skip_atoms,
    without_axes,
)

LEAST_NBYTES = 8
"""Of a line such as ``C 0 0 0``, with its end."""
_PAIR = re.compile(r"""([A-Za-z_][\w-]*)\s*=\s*(?:"([^"]*)"|'([^']*)'|\{([^}]*)\}|(\S+))""")
TRUE = ("T", "TRUE", "1")
TILTED = 1e-4
"""How far, in angstrom, the first vector of a cell may be from x, the second from the xy plane."""


class XYZ(TextFormat):
    """XYZ of all kinds."""

    kind = "XYZ"
    names_lengths = False

    def spans(self, lines: Lines, nbytes: int | None) -> Iterator[Span]:
        """Yield the frames."""
        while lines.peek():
            start = lines.offset
            n_atoms = integer(lines.next(), "a number of atoms")
            comment = lines.next()
            skip_atoms(lines, n_atoms, nbytes, LEAST_NBYTES)
            yield Span(start, lines.offset, n_atoms, remarks=_remarks(comment))

    def text_for_mdanalysis(self, raw: bytes) -> str:
        """Return the frame with the columns that MDAnalysis reads."""
        text = plain(raw)
        count, comment, *_ = text.split("\n", 2)
        columns = _columns(_pairs(comment))
        if columns == [0, 1, 2, 3]:
            return text
        rows = [row.split() for row in text.splitlines()[2:]]
        if short := next((row for row in rows if len(row) <= max(columns)), None):
            raise FrameError(f"an atom of {len(short)} columns, fewer than its Properties name")
        atoms = [" ".join(row[column] for column in columns) for row in rows]
        return "\n".join([count, "", *atoms, ""])

    def read(self, raw: bytes, n_atoms: int) -> Snapshot:
        """Return a frame, with its cell."""
        snapshot = super().read(raw, n_atoms)
        pairs = _pairs(plain(raw.split(b"\n", 2)[1]))
        vectors = _lattice(pairs)
        if vectors is not None and not _is_turned(vectors):
            box = boxes_from_vectors(vectors[np.newaxis])[0]
            snapshot.box = without_axes(box, _periodic(pairs))
        return snapshot


def _pairs(comment: str) -> dict[str, str]:
    """Return what a comment says, by names in lower case."""
    if "=" not in comment:
        return {}
    return {
        name.lower(): next((value for value in values if value), "").strip()
        for name, *values in _PAIR.findall(comment)
    }


def _columns(pairs: dict[str, str]) -> list[int]:
    """Return the columns of names and positions; raises FrameError."""
    names, at = {}, 0
    parts = pairs.get("properties", "species:S:1:pos:R:3").split(":")
    for name, kind, count in zip(parts[::3], parts[1::3], parts[2::3], strict=False):
        if not count.isdigit():
            break
        names[name.lower()] = (at, kind.upper(), int(count))
        at += int(count)
    position = names.get("pos")
    if position is None or position[2] != 3:
        raise FrameError(f"Properties {':'.join(parts)!r} without pos:R:3, which positions are")
    species = next((names[name][0] for name in ("species", "element", "z") if name in names), None)
    first = position[0]
    return [first if species is None else species, first, first + 1, first + 2]


def _lattice(pairs: dict[str, str]) -> np.ndarray | None:
    """Return the vectors of the cell, one in a row; None if there is none. Raises FrameError."""
    text = pairs.get("lattice")
    if text is None:
        return None
    try:
        numbers = np.array(re.split(r"[\s,\[\]]+", text.strip(" [],")), np.float64)
    except ValueError:
        numbers = np.empty(0)
    if numbers.size == 3:
        numbers = np.diag(numbers)
    if numbers.size != 9 or not np.isfinite(numbers).all():
        raise FrameError(f"Lattice {shown(text.encode())}, expected nine numbers")
    return numbers.reshape(3, 3) if numbers.any() else None


def _is_turned(vectors: np.ndarray) -> bool:
    """Return whether lengths and angles do not tell where the cell lies, or it is none."""
    flat = np.abs(np.linalg.det(vectors)) == 0
    return bool(
        flat or (np.abs(np.triu(vectors, 1)) > TILTED).any() or (np.diag(vectors) < 0).any()
    )


def _periodic(pairs: dict[str, str]) -> tuple[bool, ...]:
    words = re.split(r"[\s,\[\]]+", pairs.get("pbc", "T T T").strip(" [],"))
    return tuple(word.upper() in TRUE for word in words) if len(words) == 3 else (True,) * 3


def _remarks(comment: bytes) -> tuple[str, ...]:
    """Return what of a cell is not read."""
    if b"=" not in comment:
        return ()
    pairs = _pairs(plain(comment))
    vectors = _lattice(pairs)
    if vectors is None:
        return ()
    if _is_turned(vectors):
        return (
            "Lattice is turned against x, y and z (a box has its first vector along x, its second "
            "in the plane of x and y): no box is read",
        )
    return remark_on_axes(_periodic(pairs), f'pbc="{pairs.get("pbc")}"')


TINKER_NBYTES = 10
"""Of a line such as ``1 C 0 0 0``, with its end."""
_BOX = re.compile(rb"(?:\s*[-+]?\d*\.?\d+(?:[eEdD][-+]?\d+)?(?=\s)){6}\s*")


class Tinker(TextFormat):
    """A trajectory of TINKER."""

    kind = "TXYZ"

    def spans(self, lines: Lines, nbytes: int | None) -> Iterator[Span]:
        """Yield the frames."""
        while line := lines.peek():
            start = lines.offset
            lines.next()
            if not line.strip():
                raise FrameError(f"{shown(line)} in place of a number of atoms")
            n_atoms = integer(line.split()[0], "a number of atoms")
            if _BOX.fullmatch(lines.peek()):
                lines.next()
            skip_atoms(lines, n_atoms, nbytes, TINKER_NBYTES)
            yield Span(start, lines.offset, n_atoms)

    def is_whole_without_newline(self, raw: bytes) -> bool:  # noqa: ARG002
        """Return False: lines end with numbers of atoms, which may be cut."""
        return False
